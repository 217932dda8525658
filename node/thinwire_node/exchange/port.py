"""The port to an exchange, which carries contributions to the swarm and updates to the node.

An `Exchange` is the node's end of one session. Training and the session depend on this file alone. An implementation
decides how the bytes travel; `thinwire_node.kinds` finds the one that a contract names.

Times are in seconds. A time *of the exchange* is a reading of the clock that sets the deadlines. `ExchangeClock`
converts it to the node's own clock.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from thinwire_common.traffic import Traffic
from thinwire_node.limits.throttle import Throttle
from thinwire_node.runtime import Clocks
from thinwire_node.storage.state import Head, PartialSnapshot
from thinwire_proto.blobs import Blob
from thinwire_proto.contract import Contract
from thinwire_proto.errors import RemoteError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.update import Update
from thinwire_proto.identity.invite import Invite
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.identity.terms import NO_PROMOTION, ProvenTerm
from thinwire_proto.wire.reasons import Reason
from thinwire_proto.wire.rows import Row


class LinkLost(RemoteError):
    """The connection or the session is lost. The node should connect and join again."""


class SessionReplaced(LinkLost):
    """The session is over because another process has joined with this node's key."""


class Refused(RemoteError):
    """The swarm refuses this node. Another attempt would fail as well."""


class NotGenuine(RemoteError):
    """A row lacks the signature of the swarm's coordinator. The node applies nothing, and connects again."""


class BeyondTheEnd(Refused):
    """The node's partial file is longer than the whole file."""


# joining


@dataclass(frozen=True)
class Surroundings:
    """The arguments that open an exchange.

    address: HOST:PORT of the coordinator. traffic: counts the bytes sent and received. invite: names the coordinator
    that answers there; None: any is taken. thin_line: whether to bound what is on its way to this node, as
    `coordinator.link` explains. heard_of_standby: is told HOST:PORT of the coordinator's standby. throttle: paces the
    connections, if the owner limits the traffic."""

    address: str
    clocks: Clocks
    traffic: Traffic
    invite: Invite | None = None
    thin_line: bool = False
    heard_of_standby: Callable[[str], None] = lambda address: None
    throttle: Throttle | None = None


@dataclass(frozen=True)
class MomentumClaim:
    """A node's claim about its momentum. The swarm checks it before the node may continue with that momentum.

    trained_through: the last sample position in the momentum. sent_since: hashes of the contributions extracted after
    the momentum was saved."""

    trained_through: int | None
    sent_since: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Applicant:
    """A node that wants to join, and the state that it kept.

    key: the node's identity, and its proof. contract: the run that the state belongs to. head: the newest sealed row
    that the node has seen. replica_step: the step of the node's parameters. term: after the newest promotion that it
    knows."""

    key: SecretKey
    name: str
    contract: Contract | None = None
    head: Head | None = None
    replica_step: int | None = None
    momentum: MomentumClaim | None = None
    term: ProvenTerm = NO_PROMOTION


@dataclass(frozen=True)
class Admission:
    """The run's contract, and what the node must do before it takes part.

    step: the number of sealed steps. drop_momentum: the reason why the node must drop its momentum; empty if it may
    keep it. term: the coordinator's, if there was a promotion before it. rewound: the node's newest rows were lost
    before that promotion, so it must drop them and its replica."""

    contract: Contract
    step: int
    take_snapshot: bool = False
    drop_momentum: str = ""
    term: ProvenTerm = NO_PROMOTION
    rewound: bool = False


# rounds


@dataclass(frozen=True)
class EvaluationPart:
    """A part of a held-out set to measure on the parameters of `step`.

    Of the `spread` samples that are spread evenly over the set `name`: `count`, from the one with number `start` on."""

    step: int
    name: str
    spread: int
    start: int
    count: int


@dataclass(frozen=True)
class AnnouncedRound:
    """An open round that the node may contribute to.

    term: one life of the process that numbers the rounds. step: contributions are computed on the parameters of this
    step. deadline: a time of the exchange. k: components to keep in each tile. nonces: for fingerprints of the
    parameters at `step`, `step - 1` and so on, back to the oldest allowed base. lease: sample positions that the node
    may train on, in order. upcoming: positions that the node will be granted next, as far as this is known. evaluate:
    parts of held-out sets that the node shall measure besides training. evaluating: the step whose parameters the node
    keeps, because it may be given more parts of it."""

    term: int
    number: int
    step: int
    deadline: float
    k: int
    nonces: tuple[int, ...]
    lease: tuple[range, ...]
    upcoming: tuple[range, ...] = ()
    evaluate: tuple[EvaluationPart, ...] = ()
    evaluating: int | None = None


@dataclass(frozen=True)
class Waiting:
    """The node takes part in no round now. text: what it waits for."""

    step: int
    text: str


@dataclass(frozen=True)
class Paused(Waiting):
    """The organizer has paused the run. text: until when, and why. resumes_in_s: None: nobody has said when."""

    resumes_in_s: float | None = None


@dataclass(frozen=True)
class RunComplete:
    """The run is complete: there are no more rounds."""

    step: int


@dataclass(frozen=True)
class Amended:
    """The contract has changed. contract: the one in force for the announcements that follow."""

    contract: Contract


Announcement = AnnouncedRound | Waiting | RunComplete


# contributing


@dataclass(frozen=True)
class Claim:
    """The header of a contribution. A claim without samples says that the node has nothing for this round.

    step, fingerprint: the replica at the extraction. base_step: the oldest step whose parameters contributed to the
    gradient. trained_through: the last sample position trained on. dropped: micro-batches whose loss or gradient was
    not finite. loss: mean over the samples, in nats per token. compute_ms: time of forward and backward passes.
    skipped: samples passed over because their data could not be read. name: the contribution's hash; empty without
    samples."""

    term: int
    round: int
    step: int
    base_step: int
    trained_through: int | None
    dropped: int = 0
    samples: int = 0
    fingerprint: int = 0
    loss: float = 0.0
    compute_ms: int = 0
    skipped: int = 0
    name: bytes = b""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one contribution.

    text: shown to people. step: the update that contains the contribution. arrived: when the contribution had arrived
    completely, or was refused before that, as a time of the exchange; None if that is unknown."""

    reason: Reason
    text: str = ""
    step: int = 0
    arrived: float | None = None

    @property
    def counted(self) -> bool:
        return self.reason is Reason.COUNTED


# updates


@dataclass(frozen=True)
class SealedUpdate:
    """A sealed update as the node received it.

    size: bytes on the wire. head_step: the number of sealed steps when it was sent."""

    row: Row
    update: Update
    size: int
    head_step: int


# time


@dataclass(frozen=True)
class ClockReading:
    """The exchange's clock relative to the node's.

    offset: the exchange's clock minus the node's. error: bound on the offset's error."""

    offset: float
    error: float

    def here(self, there: float) -> float:
        """Convert a time of the exchange to the node's clock."""
        return there - self.offset


class ExchangeClock(Protocol):
    """The node's estimate of the clock that sets the deadlines.

    Each probe calls `probed`, with True if the two clocks have drifted or jumped apart."""

    async def begin(self, probed: Callable[[bool], None]) -> None:
        """Probe the clock for the first time."""

    async def keep(self, probed: Callable[[bool], None]) -> None:
        """Probe the clock periodically until cancelled."""

    def check(self) -> None:
        """Make `keep` probe at once if there is no reading or the machine has slept since the last probe."""

    def reading(self) -> ClockReading | None:
        """The current reading; None if it is unknown."""


class Entrance(Protocol):
    """The part of an exchange that joins a swarm and fetches what a node needs. Every call may raise LinkLost or
    Refused."""

    async def join(self, applicant: Applicant) -> Admission:
        """Join the swarm. Must be the first call. May also raise ContractError."""

    async def corpus(self, contract: Contract, path: Path) -> None:
        """Fetch the run's data file into a file, or the rest of it if the file has its beginning. The data kind checks
        its contents. May also raise BeyondTheEnd."""

    async def blob(self, blob: Blob, path: Path) -> None:
        """Fetch a blob into a file, or the rest of it if the file has its beginning. The caller checks the hash.

        Raises Refused if the swarm does not have it."""

    async def snapshot(self, folder: Path, contract: Contract, begun: PartialSnapshot | None) -> Path:
        """Fetch the newest snapshot into the file `snapshot-STEP.part` in the folder.

        If `begun` is part of that snapshot, fetch only the rest. Raises BeyondTheEnd if `begun` is longer than the
        snapshot."""

    async def evaluated(self, part: EvaluationPart, loss: float) -> None:
        """Report the loss of a part: the mean over its samples, in nats per token. Raises Refused if the swarm does not
        want it any longer."""

    async def leave(self, trained_through: int | None) -> None:
        """Leave the swarm in order. trained_through: the last sample position in the momentum that the node keeps."""

    async def close(self) -> None: ...


class Exchange(Entrance, Protocol):
    """One connection to a swarm with rounds. Every call may raise LinkLost or Refused."""

    @property
    def clock(self) -> ExchangeClock:
        """The clock of the exchange. Available after `join`."""

    def rounds(self) -> AsyncGenerator[Announcement | Amended, None]:
        """Yield the newest announcement, then each new one. The swarm expects contributions from a node that listens.

        What amends the contract comes before the announcements that depend on it. Raises ContractError if this node
        cannot read it."""

    async def publish(self, claim: Claim, payload: bytes) -> Outcome:
        """Send a contribution and wait for its outcome."""

    async def outcome(self, contribution: bytes) -> Outcome:
        """The outcome of an earlier contribution, by its hash. For use after a lost connection or a crash."""

    def updates(self, replica: Replica, saved_s: Callable[[], float]) -> AsyncGenerator[SealedUpdate, None]:
        """Yield the updates that follow the replica's step, each checked against its row, and the row's signature.

        saved_s: seconds that the caller has spent on saves since it began, which say nothing about its speed.
        Raises NotGenuine if the signature is not the coordinator's, PayloadError if an update is malformed,
        ReplicaError if it differs from its row, and LocalError if this machine cannot catch up."""
