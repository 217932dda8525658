"""What the page tells of a run beyond the moment: its figures by step, who gave what, and which rounds were void.

A watcher of `events`: called on the event loop, in microseconds. What earlier lives of the coordinator sealed is read
from the ledger meanwhile (`read_past`, off the event loop, in small pieces) and put in front when it is all there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from thinwire_coordinator.ledger.ledger import Ledger
from thinwire_coordinator.observe.series import Bucket, Series, add_loss, with_loss
from thinwire_coordinator.swarm.counts import Counts
from thinwire_coordinator.swarm.events import (
    ContributionRefused,
    ContributionTaken,
    Event,
    LossMeasured,
    RoundSealed,
    RoundVoid,
    Sampled,
)

VOIDS_MAX = 50
"""Runs of void rounds that are remembered."""
SHARES_MAX = 65_536
"""Nodes whose share of the run is remembered, those that gave least being forgotten."""
NAMES_MAX = 65_536
"""Of nodes, the newest."""
MANNERS_MAX = 16_384
"""Nodes of which it is known how they took part of late; more than any contract allows at once."""
RATE_OVER_S = 30.0
RATE_STEPS_MAX = 512
ROWS_AT_ONCE = 256
"""Read from the ledger before others are let at it."""


@dataclass
class Share:
    """What a node has given to the run, all lives of the coordinator taken together."""

    rounds: int = 0
    tokens: int = 0


@dataclass
class Manner:
    """How a node took part of late. early_s: before the deadline, its newest contribution had arrived whole."""

    round: int | None = None
    weight: int = 0
    early_s: float | None = None
    refused: ContributionRefused | None = None  # if the newest contribution was


@dataclass
class Voids:
    """Void rounds in a row for one reason. at: by the coordinator's clock; None: before its start."""

    first: int
    last: int
    why: str
    at: float | None = None


@dataclass
class Past:
    """What the ledger knows of the steps before this life of the coordinator."""

    series: Series = field(default_factory=Series)
    held_out: list[tuple[int, float]] = field(default_factory=list)
    shares: dict[str, Share] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    voids: list[tuple[int, int, str]] = field(default_factory=list)
    rounds_void: int = 0


class History:
    """counts: of this life, and told of each event before this is. started: when this life began, after `step` steps,
    by the clock that events' times are of."""

    def __init__(self, counts: Counts, step: int, started: float) -> None:
        self._counts = counts
        self._bytes_before = (0, 0, 0)  # up, down and dense, when the step before was sealed
        self._shares_before: dict[str, Share] = {}
        self._sealed: deque[tuple[float, int]] = deque(maxlen=RATE_STEPS_MAX)  # when, and tokens since the start
        self.since_step = step
        self.started = started
        self.complete = step == 0
        """Whether what came before is in it."""
        self.series = Series()
        self.held_out = Series()
        self.loss_first: tuple[int, float] | None = None
        self.loss_newest: tuple[int, float] | None = None
        self.tokens_before = 0
        """Before this life, like the next."""
        self.rounds_void_before = 0
        self.sample: Sampled | None = None
        self.names: dict[str, str] = {}
        """Of nodes that this life may not have seen."""
        self.manners: dict[str, Manner] = {}
        self.voids: deque[Voids] = deque(maxlen=VOIDS_MAX)

    def watch(self, event: Event) -> None:
        if isinstance(event, ContributionTaken):
            manner = self._manner(event.node_id)
            manner.round, manner.early_s, manner.refused = event.round, event.before_deadline_s, None
        elif isinstance(event, ContributionRefused):
            self._manner(event.node_id).refused = event
        elif isinstance(event, RoundSealed):
            self._seal(event)
        elif isinstance(event, RoundVoid):
            self._void(event)
        elif isinstance(event, LossMeasured) and math.isfinite(event.loss):
            self._measure(event.step, event.loss)
        elif isinstance(event, Sampled):
            self.sample = event

    def tokens_per_s(self, now: float) -> float:
        """Over the last half minute or so, until now."""
        while len(self._sealed) > 2 and now - self._sealed[1][0] > RATE_OVER_S:
            self._sealed.popleft()
        if len(self._sealed) < 2:
            return 0.0
        then, before = self._sealed[0]
        return (self._sealed[-1][1] - before) / max(now - then, 1e-3)

    def share(self, node: str) -> Share:
        """What a node has given, in this life and before."""
        before, since = self._shares_before.get(node, Share()), self._counts.nodes.get(node)
        if since is None:
            return before
        return Share(before.rounds + since.counted, before.tokens + since.tokens)

    def shares(self) -> dict[str, Share]:
        """Of all nodes that have given something."""
        gave = [node for node, counts in self._counts.nodes.items() if counts.counted]
        return {node: self.share(node) for node in {*self._shares_before, *gave}}

    def know_name(self, node: str, name: str) -> None:
        self.names[node] = name
        if len(self.names) > NAMES_MAX:
            del self.names[next(iter(self.names))]

    def begin_with(self, past: Past) -> None:
        """Put what the ledger knows in front of what has happened since."""
        self.series.prepend(past.series)
        measured = Series()
        for step, loss in past.held_out:
            if self.loss_first is None or step < self.loss_first[0]:
                measured.add(with_loss(step, loss))
        self.held_out.prepend(measured)
        if past.held_out:
            self.loss_first = past.held_out[0]
            self.loss_newest = self.loss_newest or past.held_out[-1]
        by_tokens = sorted(past.shares.items(), key=lambda item: item[1].tokens, reverse=True)
        self._shares_before = dict(by_tokens[:SHARES_MAX])
        self.tokens_before = sum(share.tokens for share in past.shares.values())
        for node, name in (past.names | self.names).items():
            self.know_name(node, name)
        room = VOIDS_MAX - len(self.voids)
        self.voids.extendleft(Voids(*entry) for entry in past.voids[::-1][:room])
        self.rounds_void_before = past.rounds_void
        self.complete = True

    def _seal(self, event: RoundSealed) -> None:
        up, down, dense = self._counts.bytes_up, self._counts.bytes_down, self._counts.dense_bytes
        before_up, before_down, before_dense = self._bytes_before
        self._bytes_before = (up, down, dense)
        bucket = Bucket(
            step=event.step + 1,
            tokens=event.tokens,
            update_bytes=event.update_bytes,
            bytes_up=up - before_up,
            bytes_down=down - before_down,
            dense_bytes=dense - before_dense,
            nodes=len(event.counted),
            at_s=event.at - self.started,
        )
        add_loss(bucket, event.loss)
        self.series.add(bucket)
        self._sealed.append((event.at, self._counts.tokens))
        for entry in event.counted:
            self._manner(entry.node).weight = entry.weight

    def _manner(self, node: str) -> Manner:
        if node not in self.manners:
            if len(self.manners) >= MANNERS_MAX:
                del self.manners[next(iter(self.manners))]
            self.manners[node] = Manner()
        return self.manners[node]

    def _void(self, event: RoundVoid) -> None:
        newest = self.voids[-1] if self.voids else None
        if newest is not None and (newest.last, newest.why) == (event.round - 1, event.why):
            newest.last, newest.at = event.round, event.at
        else:
            self.voids.append(Voids(event.round, event.round, event.why, event.at))

    def _measure(self, step: int, loss: float) -> None:
        self.held_out.add(with_loss(step, loss))
        self.loss_first = self.loss_first or (step, loss)
        self.loss_newest = (step, loss)


async def read_past(
    ledger: Ledger,
    term: int,
    stop: int,
    tokens_a_sample: int,
    submit: Callable[[Callable[[], None]], Awaitable[None]],
) -> Past:
    """What the ledger knows of the steps before `stop`, and of the terms before `term`. `submit` runs a piece of it,
    of milliseconds, on a thread that reads. Raises LedgerError."""
    past = Past()

    def read_lists() -> None:
        past.rounds_void, past.voids = ledger.voids_before(term, VOIDS_MAX)
        past.held_out = ledger.losses()
        past.names = ledger.names(NAMES_MAX)

    def read_rows(start: int) -> None:
        for step, body_bytes, counted in ledger.counted_at(start, min(start + ROWS_AT_ONCE, stop)):
            tokens = sum(samples for _, samples in counted) * tokens_a_sample
            past.series.add(Bucket(step + 1, tokens=tokens, update_bytes=body_bytes, nodes=len(counted)))
            for node, samples in counted:
                share = past.shares.setdefault(node, Share())
                share.rounds += 1
                share.tokens += samples * tokens_a_sample

    await submit(read_lists)
    for start in range(0, stop, ROWS_AT_ONCE):
        await submit(partial(read_rows, start))
    return past
