"""Announcements: what the coordinator tells the attending nodes."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_coordinator.hall.leases import SampleRange
from thinwire_coordinator.hall.measurement import Part
from thinwire_proto.wire.reasons import Reason


@dataclass(frozen=True)
class RoundAnnouncement:
    """An open round that the node may contribute to.

    step: contributions are computed on the parameters of this step. deadline, now: the end of the round and the time of
    this announcement, in seconds on the coordinator's clock. k: components to keep in each tile. nonces: for
    fingerprints of the parameters at `step`, `step - 1` and so on, back to the oldest allowed base. lease: the samples
    that the node may train on, in order. upcoming: samples that it may train on later, so that it can fetch them now.
    evaluate: parts of the held-out sets that it measures. evaluating: the step whose parameters it keeps, because it
    may be given more parts.
    """

    term: int
    number: int
    step: int
    deadline: float
    now: float
    k: int
    nonces: tuple[int, ...]
    lease: tuple[SampleRange, ...]
    upcoming: tuple[SampleRange, ...] = ()
    evaluate: tuple[Part, ...] = ()
    evaluating: int | None = None


@dataclass(frozen=True)
class IdleAnnouncement:
    """The node takes part in no round now. complete: whether the run is complete. text: what the node waits for.
    paused: whether the run is. resumes_in_s: the time until it goes on, if that is known."""

    term: int
    step: int
    text: str
    complete: bool = False
    paused: bool = False
    resumes_in_s: float | None = None


Announcement = RoundAnnouncement | IdleAnnouncement


@dataclass(frozen=True)
class Receipt:
    """The outcome of one contribution.

    text: shown to people. step: the update that contains the contribution. arrived_us: when its last byte arrived, by
    the coordinator's clock; 0 if it did not arrive completely or if its arrival is unknown.
    """

    reason: Reason
    text: str = ""
    step: int = 0
    arrived_us: int = 0

    @property
    def counted(self) -> bool:
        return self.reason is Reason.COUNTED
