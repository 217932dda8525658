"""Estimates of a node's own speed, and the rests that slow it down."""

from __future__ import annotations

from collections import deque

from thinwire_proto.limits import unmeasured_tail_s

MEASURED_KEPT = 8


class Tail:
    """Estimates the time from the start of an extraction to the arrival of its payload."""

    def __init__(self) -> None:
        self._encode_s: deque[float] = deque(maxlen=MEASURED_KEPT)
        self._seconds_a_byte: deque[float] = deque(maxlen=MEASURED_KEPT)
        self._bytes = 0

    def encoded(self, seconds: float) -> None:
        self._encode_s.append(seconds)

    def arrived(self, payload_bytes: int, seconds: float) -> None:
        """Record that a payload took `seconds` from its first byte sent to its last byte received."""
        if payload_bytes > 0:
            self._bytes = payload_bytes
            self._seconds_a_byte.append(max(0.0, seconds) / payload_bytes)

    @property
    def bytes_s(self) -> float | None:
        """The link's mean rate over the last payloads, in bytes per second; None before the first payload."""
        mean = sum(self._seconds_a_byte) / len(self._seconds_a_byte) if self._seconds_a_byte else 0.0
        return 1 / mean if mean else None

    def seconds(self, round_s: float) -> float:
        """The time to allow for the next payload: the slowest encoding and the slowest rate of the last eight."""
        if not self._encode_s or not self._seconds_a_byte:
            return unmeasured_tail_s(round_s)
        return max(self._encode_s) + max(self._seconds_a_byte) * self._bytes


class Speed:
    """The time per sample, with the rest that follows, averaged over the last pieces of computing."""

    def __init__(self) -> None:
        self._measured: deque[float] = deque(maxlen=MEASURED_KEPT)

    def trained(self, samples: int, seconds: float) -> None:
        self._measured.append(seconds / samples)

    @property
    def sample_s(self) -> float:
        """Mean seconds per sample; 0.0 before the first micro-batch."""
        return sum(self._measured) / len(self._measured) if self._measured else 0.0


PIECES_KEPT = 8
LONGER_MAX = 4.0
"""A sample counts as at most so many times as long as the slowest of the last pieces. A process that was stopped for an
hour did not compute for an hour."""


class LentTime:
    """The share of the time that a volunteer lends: the machine rests between two pieces of computing.

    A rest is owed as soon as a piece is done, and taken before the next one, so that waiting and sending count as rest.
    It outlives a session: a node whose line fails again and again must not compute more. share: more than 0, at most 1.
    """

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
