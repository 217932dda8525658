"""What a node needs of an exchange: the way that contributions take to the swarm, and updates to the node.

An `Exchange` is a node's end of it for one session. Training and the session stand on this file alone; how the bytes
travel is the business of an implementation (`exchange.kinds` finds the one that a contract names).

Times are in seconds. A time *of the exchange* is on the clock that its deadlines are on; `ExchangeClock` says what the
node's own clock shows then.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from thinwire_node.storage.state import Head, PartialSnapshot
from thinwire_proto.contract import Contract
from thinwire_proto.errors import RemoteError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.update import Update
from thinwire_proto.wire.rows import Row


class LinkLost(RemoteError):
    """The connection or the session is gone: connect and join again."""


class Refused(RemoteError):
    """The swarm refuses this node, for a reason that another attempt does not mend."""


class BeyondTheEnd(Refused):
    """The node has more bytes of a file than the file has."""


# joining


@dataclass(frozen=True)
class MomentumClaim:
    """What the swarm has to know of a momentum before the node may go on with it.

    trained_through: the last position that is in it. sent_since: hashes of the contributions extracted after it was
    saved."""

    trained_through: int | None
    sent_since: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Applicant:
    """A node that wants to join, and what it kept from before.

    contract: of the run that its state belongs to. head: the newest sealed row that it has seen. replica_step: of the
    parameters that it holds."""

    node_id: str
    name: str
    contract: Contract | None = None
    head: Head | None = None
    replica_step: int | None = None
    momentum: MomentumClaim | None = None


@dataclass(frozen=True)
class Admission:
    """The run's contract, and what the node has to do first.

    step: how many steps are sealed. drop_momentum: why the node has to; empty if it may go on with its momentum."""

    contract: Contract
    step: int
    take_snapshot: bool = False
    drop_momentum: str = ""


# rounds


@dataclass(frozen=True)
class AnnouncedRound:
    """A round is open, and the node may contribute to it.

    term: one life of whoever numbers the rounds. step: contributions are computed on its parameters. deadline: a time
    of the exchange. k: components to keep of a tile. nonces: for fingerprints of the parameters at `step`, `step - 1`
    and so on, as far back as a base may lie. lease: positions of the samples that the node may train on, in order."""

    term: int
    number: int
    step: int
    deadline: float
    k: int
    nonces: tuple[int, ...]
    lease: tuple[range, ...]


@dataclass(frozen=True)
class Waiting:
    """The node has no part in a round now. text: what it waits for."""

    step: int
    text: str


@dataclass(frozen=True)
class RunComplete:
    """No further round will come."""

    step: int


Announcement = AnnouncedRound | Waiting | RunComplete


# contributing


@dataclass(frozen=True)
class Claim:
    """What a contribution says of itself. Without samples it says that the node has nothing for this round.

    step, fingerprint: of the replica at the extraction. base_step: the oldest step whose parameters any of the
    gradient was computed on. trained_through: the last position trained on. dropped: micro-batches whose loss or
    gradient was not finite. loss: mean over the samples, in nats a token. compute_ms: of forward and backward."""

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


class Reason(Enum):
    """What became of a contribution; anything but COUNTED says why it was not counted. Values are metric labels."""

    COUNTED = "counted"
    LATE = "late"
    FUTURE_ROUND = "future_round"
    REPLICA_DIFFERS = "replica_differs"
    BASE_AGE = "base_age"
    MALFORMED = "malformed"
    OVER_LEASE = "over_lease"
    NO_LEASE = "no_lease"
    DUPLICATE = "duplicate"
    VOID = "void"
    NOTHING_TRAINED = "nothing_trained"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Outcome:
    """Of one contribution. text: for people. step: of the update that holds it. arrived: a time of the exchange; None
    if it had not arrived whole, or that is not known."""

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
    """size: bytes of the update as it travelled. head_step: how many steps were sealed when it was sent."""

    row: Row
    update: Update
    size: int
    head_step: int


# time


@dataclass(frozen=True)
class ClockReading:
    """offset: of the exchange's clock from the node's. error: how wrong the offset can be."""

    offset: float
    error: float

    def here(self, there: float) -> float:
        """What the node's clock shows at a time of the exchange."""
        return there - self.offset


class ExchangeClock(Protocol):
    """The clock that deadlines are on, as the node knows it. `probed` is called after each look at it, and told whether
    the two clocks have moved against each other."""

    async def begin(self, probed: Callable[[bool], None]) -> None:
        """Take the first readings."""

    async def keep(self, probed: Callable[[bool], None]) -> None:
        """Look again from time to time, until cancelled."""

    def check(self) -> None:
        """Have `keep` look at once, if the reading is unknown or the machine has slept since."""

    def reading(self) -> ClockReading | None:
        """None: not known at present."""


class Exchange(Protocol):
    """One connection to a swarm. Every call raises LinkLost or Refused."""

    @property
    def clock(self) -> ExchangeClock:
        """Only after `join`."""

    async def join(self, applicant: Applicant) -> Admission:
        """Comes before every other call. Raises ContractError as well."""

    async def corpus(self, contract: Contract) -> bytes:
        """Fetch the file of the run's data; its kind says whether it is the right one."""

    async def snapshot(self, folder: Path, contract: Contract, begun: PartialSnapshot | None) -> Path:
        """Fetch the newest snapshot into a file `snapshot-STEP.part` of the folder. If `begun` is part of the newest,
        fetch the rest only; raises BeyondTheEnd if it is longer than the whole."""

    def rounds(self) -> AsyncGenerator[Announcement, None]:
        """The newest announcement, and each new one. The swarm counts on a node while it listens."""

    async def publish(self, claim: Claim, payload: bytes) -> Outcome:
        """Send a contribution; returns when its outcome is known."""

    async def outcome(self, contribution: bytes) -> Outcome:
        """Of an earlier contribution, by its hash: after a lost connection, or a crash of either side."""

    def updates(self, replica: Replica) -> AsyncGenerator[SealedUpdate, None]:
        """Updates from the replica's step on, each checked to be what its row names. Raises PayloadError if one is
        malformed, ReplicaError if it is not what its row names, and LocalError if this machine cannot catch up."""

    async def leave(self, trained_through: int | None) -> None:
        """In good order. trained_through: the last position that is in the momentum which the node keeps."""

    async def close(self) -> None: ...
