"""A token bucket that paces bytes. Its clock is an argument."""

from __future__ import annotations

BURST_S = 0.05
"""The bucket's capacity, in seconds of its rate."""


class TokenBucket:
    """rate: bytes per second; None: no bound. Bytes are charged after the fact, so the balance may be negative."""

    def __init__(self, rate: float | None, now: float) -> None:
        self.rate = rate
        self._balance = 0.0
        self._at = now

    def set_rate(self, rate: float | None, now: float) -> None:
        """Pace at another rate from now on."""
        self._refill(now)
        self._balance = min(self._balance, 0.0) if rate is not None else 0.0
        self.rate = rate

    def charge(self, count: float, now: float) -> None:
        """Take `count` bytes, which have passed."""
        if self.rate is not None:
            self._refill(now)
            self._balance -= count

    def wait_s(self, now: float) -> float:
        """Seconds until bytes may pass; 0 if they may now."""
        if self.rate is None:
            return 0.0
        self._refill(now)
        return max(0.0, -self._balance / self.rate)

    def _refill(self, now: float) -> None:
        if self.rate is not None:
            self._balance = min(self._balance + (now - self._at) * self.rate, BURST_S * self.rate)
        self._at = now
