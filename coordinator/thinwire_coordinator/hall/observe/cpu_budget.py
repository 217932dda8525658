"""Limits the processor time of expensive measurements and of answers to readers."""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 1 / 200


class CpuBudget:
    """Limits an expensive measurement to 0.5% of a core, and to one run every `least_s` seconds.

    `now` is in seconds of a monotonic clock.
    """

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._not_before = float("-inf")

    def due(self, now: float) -> bool:
        """Whether to measure now. After it has returned True, it returns False until `took` is called."""
        if now < self._not_before:
            return False
        self._not_before = float("inf")
        return True

    def took(self, now: float, cpu_s: float) -> None:
        """Record that the measurement that began at `now` used `cpu_s` seconds of processor time."""
        self._not_before = now + max(self._least_s, cpu_s / SHARE)


@dataclass(frozen=True)
class CpuRate:
    """share: of one core. burst_s: processor time that may be used at once, after a pause."""

    share: float
    burst_s: float


class CpuBucket:
    """Limits processor time by a token bucket, which begins full.

    The cost of a use is known only afterwards, so the last use may overdraw the bucket.

    `now` is in seconds of a monotonic clock.
    """

    def __init__(self, rate: CpuRate) -> None:
        self._rate = rate
        self._left_s = rate.burst_s
        self._left_at = float("-inf")

    def has_some(self, now: float) -> bool:
        """Whether processor time is left."""
        self._left_s = min(self._rate.burst_s, self._left_s + self._rate.share * (now - self._left_at))
        self._left_at = now
        return self._left_s > 0

    def used(self, cpu_s: float) -> None:
        """Take what a use has cost."""
        self._left_s -= cpu_s
