"""What happens in a swarm, told as it happens to whoever watches: the metrics, and the page's history.

Watchers are called on the event loop and take no time. They see, and decide nothing. An exception in one of them is a
bug, which is logged and counted and changes nothing else. Times are seconds; `at` is by the coordinator's monotonic
clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from thinwire_proto.wire.rows import Counted
from thinwire_proto.wire.service_pb2 import Receipt

log = logging.getLogger("thinwire.coordinator")


@dataclass(frozen=True)
class RoundOpened:
    round: int
    step: int
    nodes: int
    at: float
    length_s: float


@dataclass(frozen=True)
class ContributionOffered:
    """A node begins to send one, and says what came of its micro-batches: how many it dropped, and how long it
    computed."""

    node_id: str
    dropped: int
    compute_s: float


@dataclass(frozen=True)
class ContributionTaken:
    """It is in the round; whether it counts is known when the round is over.

    components: votes in it. after_open_s: from the round's announcement to the last byte. before_deadline_s: from there
    to the deadline; below zero if it was in the very last moment. receive_s: from the first part to the last."""

    node_id: str
    round: int
    payload_bytes: int
    components: int
    after_open_s: float
    before_deadline_s: float
    receive_s: float


@dataclass(frozen=True)
class ContributionRefused:
    """It is not counted, and `reason` says why (REASON_VOID: its round was void)."""

    node_id: str
    reason: Receipt.Reason.ValueType


@dataclass(frozen=True)
class FingerprintCompared:
    node_id: str
    equal: bool


@dataclass(frozen=True)
class RoundSealed:
    """step: the one that the update leads from; step + 1 are sealed now. loss: in training, nats a token, mean over
    samples. gather_s: from announcement to its end; merge_s: until the update is encoded; seal_s: until body and row
    are on disk. components: with a vote other than 0. codec: which of the codec's forms was the smallest."""

    round: int
    step: int
    at: float
    why: str
    counted: tuple[Counted, ...]
    tokens: int
    loss: float
    learning_rate: float
    update_bytes: int
    components: int
    codec: str
    gather_s: float
    merge_s: float
    seal_s: float


@dataclass(frozen=True)
class RoundVoid:
    round: int
    why: str
    at: float


@dataclass(frozen=True)
class UpdateApplied:
    """The coordinator's own replica has taken an update."""

    step: int
    seconds: float


@dataclass(frozen=True)
class UpdateSent:
    """The stream of a node that was up to date has taken the whole newest update, `after_s` after it was sealed."""

    node_id: str
    step: int
    after_s: float


@dataclass(frozen=True)
class LossMeasured:
    """Held-out, nats a token; not a number if the run has diverged."""

    step: int
    loss: float


@dataclass(frozen=True)
class Sampled:
    """What the model writes at a step."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class NodeCame:
    node_id: str


@dataclass(frozen=True)
class NodeWent:
    """lost: without a word of leaving; told when it has had the time to say it."""

    node_id: str
    lost: bool


@dataclass(frozen=True)
class Fetched:
    """A node has begun to fetch something that travels once: `what` is snapshot or corpus."""

    node_id: str
    what: str


Event = (
    RoundOpened
    | ContributionOffered
    | ContributionTaken
    | ContributionRefused
    | FingerprintCompared
    | RoundSealed
    | RoundVoid
    | UpdateApplied
    | UpdateSent
    | LossMeasured
    | Sampled
    | NodeCame
    | NodeWent
    | Fetched
)


@dataclass
class Events:
    """`watchers` are told each event, in order. Work that a watcher does later goes through `keep` or `look_at`."""

    watchers: list[Callable[[Event], None]] = field(default_factory=list)
    failures: int = 0
    """Exceptions in watchers, and in their work."""
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _logged: set[tuple[str, type[BaseException]]] = field(default_factory=set)

    def tell(self, event: Event) -> None:
        for watcher in self.watchers:
            try:
                watcher(event)
            except Exception as error:  # noqa: BLE001 - a run must not end because somebody watches it
                self.failed(getattr(watcher, "__qualname__", repr(watcher)), error)

    def keep(self, what: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a watcher's task to its end; the loop itself holds tasks only weakly."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        self.look_at(what, task)
        return task

    def look_at(self, what: str, work: asyncio.Future[None]) -> None:
        """Log and count it, should a watcher's work fail."""
        work.add_done_callback(partial(self._look, what))

    def failed(self, what: str, error: BaseException) -> None:
        """Count a failure, and log it with its traceback the first time."""
        self.failures += 1
        kind = (what, type(error))
        log.error("watching failed: %s: %r", what, error, exc_info=None if kind in self._logged else error)
        self._logged.add(kind)

    def _look(self, what: str, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self.failed(what, error)
