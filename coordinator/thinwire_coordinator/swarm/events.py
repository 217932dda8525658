"""What happens in a swarm, told as it happens to whoever watches: the metrics, and the page's history.

Watchers are called on the event loop and take no time. They see; they decide nothing, and what they raise is a bug that
ends the coordinator's task. Times are seconds; `at` is by the coordinator's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from thinwire_proto.wire.rows import Counted
from thinwire_proto.wire.service_pb2 import Receipt


@dataclass(frozen=True)
class RoundOpened:
    round: int
    step: int
    nodes: int
    at: float
    length_s: float


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
    """`watchers` are told each event, in order."""

    watchers: list[Callable[[Event], None]] = field(default_factory=list)

    def tell(self, event: Event) -> None:
        for watcher in self.watchers:
            watcher(event)
