"""The port to the exchange `gossip`: the coordinator is directory, clock and relay, and merges nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from thinwire_node.exchange.port import Entrance, EvaluationPart
from thinwire_proto.gossip.assignment import Assignment
from thinwire_proto.gossip.seen_lines import SeenLines
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
    """A node's report in a beat. Everything but the topology is as of the newest state that is on disk.

    topology: the newest that the node has; 0: none. iteration: how many are finished. head: of the chain of what the
    node has mixed. samples, loss, compute_ms: since the last report; nats per token. trained_through: the last position
    of the lease in the parameters. missed: members that the node has waited for in vain since the last report.
    listens_at: HOST:PORT, or empty. step_norm: of the newest step. sketch: of the parameters with which
    sketch_iteration begins, packed; empty without one, and then 0. lines: for those who watch."""

    topology: int
    iteration: int
    head: bytes
    samples: int = 0
    loss: float = 0.0
    compute_ms: int = 0
    trained_through: int | None = None
    missed: tuple[int, ...] = ()
    listens_at: str = ""
    step_norm: float = 0.0
    sketch: bytes = b""
    sketch_iteration: int = 0
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
    None: nobody has said when it ends."""

    phase: Phase
    text: str
    next_s: float
    lease: tuple[range, ...] = ()
    assignment: Assignment | None = None
    places: Mapping[int, PeerPlace] = field(default_factory=dict)
    measure_at: int = 0
    evaluate: tuple[EvaluationPart, ...] = ()
    resumes_in_s: float | None = None


class GossipExchange(Entrance, Protocol):
    """One connection to the coordinator of a gossip run. Every call may raise LinkLost or Refused."""

    async def beat(self, report: BeatReport) -> BeatAnswer:
        """Send a report. May also raise PayloadError."""

    def relay(self, parcels: Parcels) -> AsyncGenerator[Any, None]:
        """Hand parcels to the relay, and yield those that it hands on to this node."""

    async def deposit(self, iteration: int, head: bytes, x: bytes) -> str:
        """Hand in the parameters: float32, little-endian, flat. Returns why they are refused, or nothing."""
