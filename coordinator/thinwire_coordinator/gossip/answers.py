"""Answers to reports, claims of deposits, and figures, in the coordinator's own types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire_coordinator.hall.access.door import Denied
from thinwire_coordinator.hall.leases import SampleRange
from thinwire_coordinator.hall.measurement import Part
from thinwire_proto.gossip.assignment import Assignment


class ReportRefused(Exception):
    """A report or a deposit changes nothing, for this reason."""

    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.text)
        self.denied = denied


@dataclass(frozen=True)
class PeerPlace:
    """A peer of an assignment. address: empty if it does not listen."""

    member: int
    public_key: bytes
    address: str


@dataclass(frozen=True)
class BeatAnswer:
    """stage: waiting, paused, training, deposit or complete. text: in words. peers: those of the assignment whose
    places are new to the node. measure_at: the iteration whose sketch is asked for; 0: none. evaluate: parts of
    held-out sets to measure, on the parameters with which the part's iteration begins. resumes_in_s: of a pause; None:
    nobody has said when it ends."""

    stage: str
    text: str
    next_s: float
    lease: tuple[SampleRange, ...] = ()
    assignment: Assignment | None = None
    peers: Sequence[PeerPlace] = ()
    measure_at: int = 0
    evaluate: Sequence[Part] = ()
    resumes_in_s: float | None = None


@dataclass(frozen=True)
class DepositClaim:
    """The header of a node's parameters; see `DepositHeader`."""

    iteration: int
    head: bytes
    body_bytes: int
    hash: bytes
    signature: bytes
