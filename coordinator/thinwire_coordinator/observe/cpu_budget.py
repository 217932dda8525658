"""How often to look at something that costs processor time to look at."""

from __future__ import annotations

SHARE = 1 / 200


class CpuBudget:
    """Whoever looks when this says so spends at most a two-hundredth of a core on it, and looks at most once in
    `least_s`. `now`: seconds of a monotonic clock."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._not_before = float("-inf")

    def due(self, now: float) -> bool:
        """Whether to look now; says yes once, and then not again before `took`."""
        if now < self._not_before:
            return False
        self._not_before = float("inf")
        return True

    def took(self, now: float, cpu_s: float) -> None:
        """Looking is over, and cost this."""
        self._not_before = now + max(self._least_s, cpu_s / SHARE)
