"""Estimates the coordinator's clock on a node, with a bound on the error.

The time of day is wrong on many machines and jumps when it is corrected. The arrival time of an announcement is no
better: its delay on the link is unknown. So the node probes the coordinator's clock. Each probe has four timestamps,
which bound the error of its offset (docs/time.md). Pure: the caller passes times in. All times are in seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from thinwire_proto.limits import CLOCK_DRIFT_MAX

PROBES_KEPT = 8


@dataclass(frozen=True)
class Probe:
    """One probe. sent, back: times on the node's clock. received, answered: times on the coordinator's clock."""

    sent: float
    received: float
    answered: float
    back: float

    @property
    def offset(self) -> float:
        """The coordinator's clock minus the node's clock."""
        return ((self.received - self.sent) + (self.answered - self.back)) / 2

    @property
    def error(self) -> float:
        """Bound on the offset's error when the probe came back: half of the time on the network."""
        return ((self.back - self.sent) - (self.answered - self.received)) / 2

    def error_at(self, now: float) -> float:
        """Bound on the offset's error at a later time. It grows with the clocks' drift."""
        return self.error + CLOCK_DRIFT_MAX * max(0.0, now - self.back)


class CoordinatorClock:
    """The coordinator's clock, estimated from the newest probes of one term."""

    def __init__(self) -> None:
        self._probes: deque[Probe] = deque(maxlen=PROBES_KEPT)
        self._best: Probe | None = None
        self._term: int | None = None

    def __bool__(self) -> bool:
        """Whether the offset is known."""
        return bool(self._probes)

    def forget(self) -> None:
        """Discard all probes, for example after the machine slept."""
        self._probes.clear()
        self._best = None

    def add(self, probe: Probe, term: int) -> str | None:
        """Add a probe. Returns a message if a clock jumped, else None."""
        if term != self._term:
            self.forget()
            self._term = term
        if probe.back < probe.sent or probe.answered < probe.received or probe.error < 0:
            self.forget()
            return "a clock ran backwards during a probe; discarded all probes"
        odd = None
        if self._probes:
            apart = abs(probe.offset - self.offset(probe.back))
            if apart > probe.error + self.error(probe.back):
                odd = f"this clock and the coordinator's have moved apart by {apart:.3f} s; probing again"
                self.forget()
        self._probes.append(probe)
        # all errors grow at the same rate, so the best probe remains the best until the next one arrives
        self._best = min(self._probes, key=lambda kept: kept.error_at(probe.back))
        return odd

    def offset(self, now: float) -> float:
        """The coordinator's clock minus the node's clock. Requires a known offset."""
        assert self._best is not None
        return self._best.offset

    def error(self, now: float) -> float:
        """Bound on the offset's error."""
        assert self._best is not None
        return self._best.error_at(now)

    def here(self, there: float, now: float) -> float:
        """Convert a time `there` on the coordinator's clock to the node's clock."""
        return there - self.offset(now)
