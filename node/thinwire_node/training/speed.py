"""Estimates of a node's own speed."""

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
