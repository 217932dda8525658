"""Limits how often an expensive measurement runs."""

from __future__ import annotations

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
