"""The port to the exchange `gossip`: the coordinator is directory, clock and relay, and merges nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from thinwire_node.exchange.port import Entrance, EvaluationPart
from thinwire_proto.contract import Contract
from thinwire_proto.gossip.assignment import Assignment
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
