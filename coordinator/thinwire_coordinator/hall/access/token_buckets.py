"""Token buckets by key: how often somebody may do something, with room for a burst."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

KEYS_MAX = 1 << 14
"""Buckets that are kept. The one whose last use is the longest ago is forgotten first, and begins full again."""


@dataclass(frozen=True)
class Rate:
    """burst: how many at once. each_s: seconds until one more is allowed."""

    burst: int
    each_s: float


class TokenBuckets:
    """One bucket for each key, each of which begins full. `now` is in seconds on a clock that never goes back."""

    def __init__(self, rate: Rate, keys_max: int = KEYS_MAX) -> None:
        self._rate = rate
        self._keys_max = keys_max
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when there were so many

    def __len__(self) -> int:
        return len(self._buckets)

    def wait_s(self, key: str, now: float) -> float:
        """Seconds until the key's bucket has a token; 0 if it has one now."""
        return max(0.0, (1.0 - self._tokens(key, now)) * self._rate.each_s)

    def take(self, key: str, now: float) -> bool:
        """Take a token out of the key's bucket. Return False, and take none, if there is none."""
        tokens = self._tokens(key, now)
        if tokens < 1.0:
            return False
        self._buckets[key] = tokens - 1.0, now
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
        return True

    def _tokens(self, key: str, now: float) -> float:
        tokens, since = self._buckets.get(key, (float(self._rate.burst), now))
        return min(float(self._rate.burst), tokens + (now - since) / self._rate.each_s)
