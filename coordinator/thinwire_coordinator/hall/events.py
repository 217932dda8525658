"""The events of a swarm, and what it may find about a node.

Watchers, such as the metrics and the page's history, receive each event as it happens. They run on the event loop,
return at once, and never influence the swarm. An exception in a watcher is a bug; it is logged, and has no other
effect. Times are in seconds; `at` is read from the coordinator's monotonic clock.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Literal

from thinwire_coordinator.hall.access.door import DoorReason
from thinwire_proto.errors import ThinwireError
from thinwire_proto.wire.reasons import Reason
from thinwire_proto.wire.rows import Counted

log = logging.getLogger("thinwire.coordinator")


TIME_IS_UP = "time is up"
"""Begins the reason of a round that ended at its deadline; see `RoundSealed.why`."""


@dataclass(frozen=True)
class RoundOpened:
    round: int
    step: int
    nodes: int
    at: float
    length_s: float


@dataclass(frozen=True)
class ContributionOffered:
    """A node begins to send a contribution.

    dropped: micro-batches that the node dropped. compute_s: how long it computed. skipped: samples that it passed over
    because it could not read their data. They are as the node says, within the bounds of its lease and of time.
    """

    node_id: str
    dropped: int
    compute_s: float
    skipped: int = 0


@dataclass(frozen=True)
class ContributionTaken:
    """A round has accepted a contribution. Whether it counts is known when the round is over.

    components: votes in it. after_open_s: from the round's announcement to the last byte. before_deadline_s: from the
    last byte to the deadline; slightly below zero if it came within the timer's tick. receive_s: from the first part to
    the last.
    """

    node_id: str
    round: int
    payload_bytes: int
    components: int
    after_open_s: float
    before_deadline_s: float
    receive_s: float


@dataclass(frozen=True)
class ContributionRefused:
    """A contribution is not counted, for this reason (VOID: its round was void)."""

    node_id: str
    reason: Reason


@dataclass(frozen=True)
class Refused:
    """A `call` was refused before the swarm saw it, or a `join` by the door, which also ends sessions."""

    what: Literal["call", "join"]
    reason: DoorReason


@dataclass(frozen=True)
class FingerprintCompared:
    node_id: str
    equal: bool


@dataclass(frozen=True)
class RoundSealed:
    """The update of a round is sealed.

    step: the step that the update starts from; step + 1 updates are sealed now. loss: training loss, nats per token,
    the median over the nodes, each with the weight of its votes. components: components whose merged vote is not 0.
    gather_s: from the announcement to the end of the round. merge_s: from there until the update is encoded. seal_s:
    from there until body and row are on disk.
    """

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
    gather_s: float
    merge_s: float
    seal_s: float


@dataclass(frozen=True)
class NodeProgress:
    """A node's progress in a beat. iteration: how many it has finished. loss: of its own parameters on its own samples,
    mean over the beat's; None without samples."""

    iteration: int
    loss: float | None


@dataclass(frozen=True)
class BeatSealed:
    """The reports of a beat are sealed, in a gossip run.

    beat: the number of its row. progress: of each node in it, by its newest report. iterations: least, median and most
    of the members that take part. iterations_done: of all nodes together in this beat, from their samples. members: of
    the topology. loss: median over nodes, nats per token; not finite without samples. learning_rate: at the median.
    """

    beat: int
    at: float
    counted: tuple[Counted, ...]
    tokens_a_sample: int
    progress: Mapping[str, NodeProgress]
    iterations: tuple[int, int, int]
    iterations_done: float
    members: int
    loss: float
    learning_rate: float

    @property
    def tokens(self) -> int:
        return self.tokens_a_sample * sum(entry.samples for entry in self.counted)

    @property
    def losses(self) -> tuple[float, ...]:
        """The finite losses of single nodes."""
        return tuple(one.loss for one in self.progress.values() if one.loss is not None and math.isfinite(one.loss))


@dataclass(frozen=True)
class DisagreementMeasured:
    """The nodes of a gossip run are `distance` apart at an iteration: see `GossipFigures`."""

    iteration: int
    nodes: int
    distance: float
    in_steps: float | None


@dataclass(frozen=True)
class RoundVoid:
    round: int
    why: str
    at: float


@dataclass(frozen=True)
class PhaseTook:
    """A phase after a round has taken so long: `broadcast`, from the seal until the stream of a node at the head has
    taken the whole newest update; `apply`, the update to the coordinator's own replica."""

    phase: Literal["broadcast", "apply"]
    seconds: float


@dataclass(frozen=True)
class LossMeasured:
    """The loss on the held-out set `name` at a step, in nats per token; not finite if the run has diverged."""

    step: int
    name: str
    loss: float


@dataclass(frozen=True)
class PartJudged:
    """The outcome of a part of a held-out measurement.

    result: `agreed`, `differed` or `unanswered` for a node's part; `coordinator` if the coordinator has to measure it.
    node_id: empty for the coordinator.
    """

    node_id: str
    result: str


@dataclass(frozen=True)
class Sampled:
    """A text that the model generated at a step."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class NodeCame:
    node_id: str


@dataclass(frozen=True)
class NodeWent:
    """A node is gone. lost: it did not call Leave within the time allowed for that."""

    node_id: str
    lost: bool


@dataclass(frozen=True)
class NodeJudged:
    """The coordinator has changed its trust in a node. verdict, cause: see `thinwire_coordinator.star.trust.evidence`.
    reason: in words. until: when a ban ends, in seconds since 1970; 0 otherwise."""

    node_id: str
    verdict: Verdict
    cause: Cause
    reason: str
    until: float = 0.0


Event = (
    RoundOpened
    | ContributionOffered
    | ContributionTaken
    | ContributionRefused
    | Refused
    | FingerprintCompared
    | RoundSealed
    | BeatSealed
    | DisagreementMeasured
    | RoundVoid
    | PhaseTook
    | LossMeasured
    | PartJudged
    | Sampled
    | NodeCame
    | NodeWent
    | NodeJudged
)


@dataclass
class Events:
    """Passes each event to all `watchers`, in order. A watcher starts later work through `keep` or `look_at`."""

    watchers: list[Callable[[Event], None]] = field(default_factory=list)
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _logged: set[tuple[str, type[BaseException]]] = field(default_factory=set)

    def tell(self, event: Event) -> None:
        for watcher in self.watchers:
            try:
                watcher(event)
            except Exception as error:  # noqa: BLE001 - a failing watcher must not end the run
                self.failed(getattr(watcher, "__qualname__", repr(watcher)), error)

    def keep(self, what: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a watcher's task and hold a reference to it, because the event loop holds only a weak one."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        self.look_at(what, task)
        return task

    def look_at(self, what: str, work: asyncio.Future[None]) -> None:
        """Log a failure of a watcher's work."""
        work.add_done_callback(partial(self._look, what))

    def failed(self, what: str, error: BaseException) -> None:
        """Log a failure; a bug has its traceback the first time, and a failing disk has none."""
        kind = (what, type(error))
        explained = isinstance(error, ThinwireError | OSError) or kind in self._logged
        log.error("a watcher failed: %s: %r", what, error, exc_info=None if explained else error)
        self._logged.add(kind)

    def _look(self, what: str, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self.failed(what, error)


class Cause(Enum):
    """The causes of suspicion. `sequential` has the tests. Values are labels of events."""

    AGAINST = "against"
    """Its votes contradict those of the rest."""
    NOISE = "noise"
    """Its votes have nothing in common with those of the rest."""
    COPY = "copy"
    """Its votes are those of another node."""
    REPEAT = "repeat"
    """Its votes are its own votes of an earlier round."""
    EMPTY = "empty"
    """It has far fewer votes than the others."""
    SILENCE = "silence"
    """It takes leases and contributes nothing."""
    MISMATCH = "mismatch"
    """The fingerprint of its parameters differs from the coordinator's."""
    MALFORMED = "malformed"
    """Its payloads cannot be read."""
    AUDIT = "audit"
    """Its votes do not come from the samples of its lease."""
    HELD_OUT = "held_out"
    """The held-out losses that it measured differ from those that the coordinator found."""


class Verdict(Enum):
    """The effect of a decision. Values are labels of metrics and events."""

    SUSPECTED = "suspected"
    """The node's votes are not merged from now on, but still observed."""
    LOWERED = "lowered"
    """The node counts as a newcomer."""
    CLEARED = "cleared"
    """The node counts again, as a newcomer."""
    BANNED = "banned"
    """The node is refused until `until`."""
