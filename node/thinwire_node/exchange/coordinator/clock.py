"""What the coordinator's clock shows, seen from a node.

The time of day is wrong on many machines, and jumps when somebody sets it right. The time at which an announcement came
says when its round ends only as exactly as the announcement was fast. So the node asks, with four timestamps a
probe, and knows for each answer how wrong it can be (docs/time.md). Pure: times come in, an interval goes out.
Seconds throughout.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from thinwire_proto.limits import CLOCK_DRIFT_MAX

PROBES_KEPT = 8


@dataclass(frozen=True)
class Probe:
    """sent, back: on the node's clock. received, answered: on the coordinator's."""

    sent: float
    received: float
    answered: float
    back: float

    @property
    def offset(self) -> float:
        """Of the coordinator's clock from the node's."""
        return ((self.received - self.sent) + (self.answered - self.back)) / 2

    @property
    def error(self) -> float:
        """Bound on the offset's error when the probe came back: half of the time that was spent on the way."""
        return ((self.back - self.sent) - (self.answered - self.received)) / 2

    def error_at(self, now: float) -> float:
        return self.error + CLOCK_DRIFT_MAX * max(0.0, now - self.back)


class CoordinatorClock:
    """The offset, from the newest probes of one term."""

    def __init__(self) -> None:
        self._probes: deque[Probe] = deque(maxlen=PROBES_KEPT)
        self._best: Probe | None = None
        self._term: int | None = None

    def __bool__(self) -> bool:
        """Whether the offset is known."""
        return bool(self._probes)

    def forget(self) -> None:
        """After a suspend, no old probe says anything."""
        self._probes.clear()
        self._best = None

    def add(self, probe: Probe, term: int) -> str | None:
        """Take in a probe; returns in words what is odd about it, if anything is."""
        if term != self._term:
            self.forget()
            self._term = term
        if probe.back < probe.sent or probe.answered < probe.received or probe.error < 0:
            self.forget()
            return "a clock ran backwards during a probe; all probes are forgotten"
        odd = None
        if self._probes:
            apart = abs(probe.offset - self.offset(probe.back))
            if apart > probe.error + self.error(probe.back):
                odd = f"this clock and the coordinator's have moved by {apart:.3f} s against each other; asking anew"
                self.forget()
        self._probes.append(probe)
        # all grow at the same rate, so the best stays the best until the next one comes
        self._best = min(self._probes, key=lambda kept: kept.error_at(probe.back))
        return odd

    def offset(self, now: float) -> float:
        """Of the coordinator's clock from the node's. Call it only if the offset is known."""
        assert self._best is not None
        return self._best.offset

    def error(self, now: float) -> float:
        """How wrong the offset can be."""
        assert self._best is not None
        return self._best.error_at(now)

    def here(self, there: float, now: float) -> float:
        """What the node's clock shows when the coordinator's shows `there`."""
        return there - self.offset(now)
