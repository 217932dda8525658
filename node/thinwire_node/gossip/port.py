"""The ports of a gossip run: to the coordinator, which is directory, clock and relay and merges nothing, and to the
lines between nodes. `thinwire_node.gossip.lines` implements `Lines`, and `Neighbours` implements `Listener`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from thinwire_node.exchange.port import Entrance, EvaluationPart
from thinwire_proto.contract import Contract
from thinwire_proto.gossip.assignment import Assignment
from thinwire_proto.gossip.message import Message
from thinwire_proto.gossip.reports import Report, SeenLines
from thinwire_proto.identity.keys import PublicKey

Parcels = AsyncIterator[Any]
"""Parcels of the wire, which only the lines of a node look into."""


class Phase(Enum):
    """The state of a run, as the coordinator tells it."""

    WAITING = "waiting"
    PAUSED = "paused"
    TRAINING = "training"
    DEPOSIT = "deposit"
    COMPLETE = "complete"


@dataclass(frozen=True)
class BeatReport:
    """A node's report in a beat, and what goes beside it. Everything but the topology is as of the newest state that is
    on disk. samples, loss, compute_ms and missed are since the last report.

    sketch: whose hash the report names, packed; empty without one. listens_at: HOST:PORT, or empty. lines: for those
    who watch."""

    report: Report
    sketch: bytes = b""
    listens_at: str = ""
    lines: SeenLines = field(default_factory=SeenLines)


@dataclass(frozen=True)
class PeerPlace:
    """The place where a member is reached. key: its identity. address: HOST:PORT; empty: over the relay."""

    key: PublicKey
    address: str


@dataclass(frozen=True)
class BeatAnswer:
    """The coordinator's answer to a report.

    text: what a waiting node waits for. next_s: until the next report. lease: positions to train on, in order, without
    those that were reported. assignment: a new one; None if the node has the newest. places: of its peers, as far as
    they are new to this node. measure_at: the iteration whose sketch is wanted; 0: none. evaluate: parts of held-out
    sets to measure on the parameters with which the iteration `step` of the part begins. resumes_in_s: of a pause;
    None: nobody has said when it ends. contract: with the amendments that came; None: none came."""

    phase: Phase
    text: str
    next_s: float
    lease: tuple[range, ...] = ()
    assignment: Assignment | None = None
    places: Mapping[int, PeerPlace] = field(default_factory=dict)
    measure_at: int = 0
    evaluate: tuple[EvaluationPart, ...] = ()
    resumes_in_s: float | None = None
    contract: Contract | None = None


class GossipExchange(Entrance, Protocol):
    """One connection to the coordinator of a gossip run. Every call may raise LinkLost or Refused."""

    async def beat(self, report: BeatReport) -> BeatAnswer:
        """Send a report. May also raise PayloadError, or ContractError for an amendment that this version does not
        know."""

    def relay(self, parcels: Parcels) -> AsyncGenerator[Any, None]:
        """Hand parcels to the relay, and yield those that it hands on to this node."""

    async def deposit(self, iteration: int, head: bytes, x: bytes) -> str:
        """Hand in the parameters: float32, little-endian, flat. Returns why they are refused, or nothing."""


Relay = Callable[[AsyncIterator[Any]], AsyncGenerator[Any, None]]
"""Hands parcels to the relay, and yields those that it hands on to this node; see `GossipExchange.relay`."""


class Listener(Protocol):
    """Learns what happens on the lines, in their order, on the event loop. peer: a member number."""

    def received(self, peer: int, message: Message) -> None:
        """A message of a peer, whose signature is checked. Raises PayloadError if the peer cannot have sent it, or if
        it is one too many; the line is then lost."""

    def confirmed(self, peer: int, sequence: int) -> None:
        """The peer has all messages up to this one on disk. Raises PayloadError if it cannot have them."""

    def present(self, peer: int) -> None:
        """The line holds, for the first time or again: send again what is not confirmed."""

    def absent(self, peer: int, why: str) -> None:
        """The line is lost."""

    def received_from(self, peer: int) -> int:
        """The peer's last message that is on disk."""


class Lines(Protocol):
    """The lines of a node. peer: a member number."""

    @property
    def present(self) -> tuple[int, ...]:
        """Peers that are there."""

    @property
    def direct(self) -> tuple[int, ...]:
        """Peers to which there is a direct line."""

    @property
    def listens_at(self) -> str:
        """HOST:PORT, or :PORT, at which peers reach this node; empty if it does not listen."""

    def assign(self, peers: Mapping[int, PeerPlace]) -> None:
        """Have lines to these peers, and to no others."""

    def send(self, peer: int, message: Message) -> None:
        """Queue a message. Nothing is sent to a peer that is absent."""

    def confirm(self, peer: int) -> None:
        """Tell a peer what is on disk."""

    async def run(self, relay: Relay) -> None:
        """Have the lines through a relay until it ends. Raises what it raises. Peers without a direct line are absent
        then."""

    async def close(self) -> None:
        """End all lines, and listen no more."""


MakeLines = Callable[[Listener], Lines]
