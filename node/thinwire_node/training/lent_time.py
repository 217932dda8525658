"""The share of the time that a volunteer lends: the machine rests between two pieces of computing.

A rest is owed as soon as a piece is done, and taken before the next one, so that waiting and sending count as rest. It
outlives a session: a node whose line fails again and again must not compute more for it.
"""

from __future__ import annotations

from collections import deque

PIECES_KEPT = 8
LONGER_MAX = 4.0
"""A sample counts as at most so many times as long as the slowest of the last pieces. A process that was stopped for an
hour did not compute for an hour."""


class LentTime:
    """share: of the time, more than 0 and at most 1."""

    def __init__(self, share: float = 1.0) -> None:
        self.share = share
        self._computed_at = 0.0
        self._rests_until = 0.0
        self._sample_s: deque[float] = deque(maxlen=PIECES_KEPT)

    def computed(self, samples: int, seconds: float, now: float) -> float:
        """Owe the rest after a piece of computing that has just ended. Returns the seconds of the rest."""
        sample_s = seconds / samples
        if self._sample_s:
            sample_s = min(sample_s, LONGER_MAX * max(self._sample_s))
        self._sample_s.append(sample_s)
        rest_s = samples * sample_s * (1 / self.share - 1)
        self._rests_until = max(self.rests_until(now), now) + rest_s
        self._computed_at = now
        return rest_s

    def rests_until(self, now: float) -> float:
        """The end of the rest, on the clock of `now`; `now` or earlier if there is none, or the clock was set back."""
        return self._rests_until if now >= self._computed_at else now
