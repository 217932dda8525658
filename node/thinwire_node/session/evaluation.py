"""Measures this node's parts of the held-out losses in small batches, and reports them.

The training loop decides when there is time for a batch (`pacing`). A part must be measured on the parameters of its
step. `Work` keeps a copy of them if an update comes first. In a gossip run, a step is an iteration of the
node, which measures its parts before it trains.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from thinwire_node.exchange.port import AnnouncedRound, Announcement, Entrance, EvaluationPart, Refused
from thinwire_proto.blobs import Blob, BlobMissing
from thinwire_proto.errors import RemoteError
from thinwire_proto.task import DataSource

log = logging.getLogger("thinwire.node")

PARTS_MAX = 256
"""Parts of one announcement that a node takes, more than a measurement of 16 sets with 64 samples has."""

Fetch = Callable[[Sequence[Blob]], Awaitable[None]]


class Measured(Protocol):
    """The parameters that a node can measure."""

    def keep(self, step: int | None) -> None:
        """See `thinwire_node.star.work.Work`."""

    def holds(self, step: int) -> bool:
        """Whether the parameters of a step are here."""

    async def held_out_loss(self, step: int, name: str, samples: Sequence[int]) -> float | None:
        """The mean loss on these samples; None if the parameters are gone. Raises Interrupted, BlobMissing."""


@dataclass
class _Progress:
    """The progress of a part. samples: the numbers of its samples. ready: whether its blobs, `needed`, are here."""

    samples: list[int]
    needed: tuple[Blob, ...] = ()
    ready: bool = False
    measured: int = 0
    weight: int = 0
    loss_sum: float = 0.0


class Evaluation:
    """The parts of one session.

    fetch: fetches blobs into the cache, where they stay until the next call; raises RemoteError if it cannot. on_ready:
    called when a part can be measured. own: the parameters are this node's alone, so nobody else can find that they
    have diverged."""

    def __init__(
        self,
        exchange: Entrance,
        work: Measured,
        data: DataSource,
        fetch: Fetch,
        on_ready: Callable[[], None],
        *,
        own: bool = False,
    ) -> None:
        self._exchange = exchange
        self._work = work
        self._data = data
        self._fetch = fetch
        self._on_ready = on_ready
        self._own = own
        self._parts: dict[EvaluationPart, _Progress] = {}
        self._done: set[EvaluationPart] = set()  # measured or given up; of the newest step only
        self._step: int | None = None
        self._changed = asyncio.Event()
        self._has_fetched = False  # blobs that stay until the next call
        self._reports: asyncio.Queue[tuple[EvaluationPart, float]] = asyncio.Queue()

    def announced(self, announcement: Announcement) -> None:
        """Take in the parts of a new announcement. Parts that it does not name are no longer wanted."""
        if isinstance(announcement, AnnouncedRound):
            self.want(announcement.evaluate, announcement.evaluating)
        else:
            self.want((), None)

    def want(self, wanted: Sequence[EvaluationPart], step: int | None) -> None:
        """Measure these parts, and no others. step: whose parameters shall be kept, because there may be more parts."""
        self._work.keep(step)
        if step != self._step:
            self._step = step
            self._done.clear()
        new = (part for part in wanted[:PARTS_MAX] if part not in self._done)
        self._parts = {part: self._parts.get(part) or self._begun(part) for part in new}
        self._changed.set()

    def _begun(self, part: EvaluationPart) -> _Progress:
        """The progress of a new part. It has no samples if this node's data do not have them."""
        found = next((one for one in self._data.held_out_sets() if one.name == part.name), None)
        if found is None or not 0 < part.count <= part.spread <= found.samples:
            return _Progress([])
        return _Progress(found.spread(part.spread)[part.start : part.start + part.count])

    @property
    def samples_ready(self) -> int:
        """The number of samples of the next part that can be measured now."""
        part = self._next()
        return len(self._parts[part].samples) - self._parts[part].measured if part is not None else 0

    def _next(self) -> EvaluationPart | None:
        ready = (part for part, found in self._parts.items() if found.ready and self._work.holds(part.step))
        return next(ready, None)

    async def measure(self, samples: int) -> None:
        """Measure up to `samples` samples of the next part. Raises Interrupted."""
        part = self._next()
        if part is None:
            return
        progress = self._parts[part]
        batch = progress.samples[progress.measured :][:samples]
        try:
            loss = await self._work.held_out_loss(part.step, part.name, batch)
            weight = self._data.held_out_weight(part.name, batch)
        except BlobMissing as error:
            self._give_up(part, str(error))  # the cache was too small to keep it
            return
        if loss is None:
            self._give_up(part, "its parameters are gone")
            return
        progress.measured += len(batch)
        progress.weight += weight
        progress.loss_sum += loss * weight
        if progress.measured == len(progress.samples):
            self._finish(part, progress.loss_sum / progress.weight)

    def _finish(self, part: EvaluationPart, loss: float) -> None:
        if not self._own and not math.isfinite(loss):
            self._give_up(part, f"its loss is {loss}")  # the coordinator measures it and finds that the run diverged
            return
        self._done.add(part)
        if self._parts.pop(part, None) is not None:
            self._reports.put_nowait((part, loss))

    def _give_up(self, part: EvaluationPart, why: str) -> None:
        """Leave a part to another node, which is asked when this one does not answer."""
        log.debug("step %d: a part of the held-out set %r is not measured: %s", part.step, part.name, why)
        self._done.add(part)
        self._parts.pop(part, None)

    async def prepare(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._has_fetched and not self._parts:
                await self._fetch(())
                self._has_fetched = False
            for part, progress in list(self._parts.items()):
                if progress.ready or part not in self._parts:
                    continue
                if not progress.samples:
                    self._give_up(part, "these data do not have it")
                    continue
                progress.needed = self._data.held_out_needs(part.name, progress.samples)
                others = (blob for other in self._parts.values() if other.ready for blob in other.needed)
                try:
                    if progress.needed:
                        self._has_fetched = True
                        await self._fetch(list(dict.fromkeys([*others, *progress.needed])))
                except RemoteError as error:
                    self._give_up(part, str(error))
                    continue
                progress.ready = True
                self._on_ready()

    async def report(self) -> None:
        while True:
            part, loss = await self._reports.get()
            try:
                await self._exchange.evaluated(part, loss)
            except Refused as error:
                log.info("a held-out loss was not taken: %s", error)
