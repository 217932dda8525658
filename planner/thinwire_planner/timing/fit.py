"""Finds round trip, rate and first window of a line from the times of messages of three sizes.

A time lasts from the first byte sent to the arrival of a short answer, on a new connection: t(m) + RTT/2. The smallest
message gives the round trip, the largest the rate, and the one between them the window, because on long lines the ramp
lies between. Each is found by bisection, since the time grows with the round trip and falls with the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from thinwire_planner.timing.link import INITIAL_WINDOW_BYTES, OVERHEAD, ramp_s
from thinwire_proto.errors import ConfigError

SIZES_BYTES = (4 * 1024, 64 * 1024, 1024 * 1024)
RATE_BOUNDS = (1e3, 1e13)
WINDOWS_BYTES = tuple(INITIAL_WINDOW_BYTES * 2**doubling for doubling in range(8))
STEPS = 60
ROUNDS = 4
"""Rate and round trip depend a little on each other, so they are found in turn, this often."""


@dataclass(frozen=True)
class FittedLine:
    """One direction of a line. error: the largest relative difference of a fitted time from a measured one."""

    rtt_s: float
    rate_bits_s: float
    window_bytes: float
    error: float

    def answered_s(self, size_bytes: float) -> float:
        """The time of a message and its answer on a new connection."""
        return _answered_s(size_bytes, self.rtt_s, self.rate_bits_s, self.window_bytes)


def fit(answered_s: Mapping[int, float]) -> FittedLine:
    """Fit a line to seconds by message size. Raises ConfigError if there are fewer than three sizes, or a time is not
    positive."""
    if len(answered_s) < len(SIZES_BYTES) or min(answered_s.values()) <= 0:
        raise ConfigError(f"a line is fitted to the times of {len(SIZES_BYTES)} sizes, each more than 0 s")
    return min((_fit(answered_s, window) for window in WINDOWS_BYTES), key=lambda found: found.error)


def _fit(answered_s: Mapping[int, float], window: float) -> FittedLine:
    small, large = min(answered_s), max(answered_s)
    rtt_s, rate = answered_s[small], RATE_BOUNDS[1]
    for _ in range(ROUNDS):
        at_rtt_s = rtt_s
        rate = _bisect(lambda bits_s, rtt=at_rtt_s: -_answered_s(large, rtt, bits_s, window), -answered_s[large])  # type: ignore[misc]
        at_rate = rate
        rtt_s = _bisect(
            lambda rtt, bits_s=at_rate: _answered_s(small, rtt, bits_s, window),  # type: ignore[misc]
            answered_s[small],
            (1e-9, answered_s[small]),
        )
    line = FittedLine(rtt_s, rate, window, 0.0)
    error = max(abs(line.answered_s(size) / seconds - 1) for size, seconds in answered_s.items())
    return FittedLine(rtt_s, rate, window, error)


def _answered_s(size: float, rtt_s: float, rate: float, window: float) -> float:
    return rtt_s + 8 * size * (1 + OVERHEAD) / rate + float(ramp_s(size, rtt_s, rate, window))


def _bisect(rising: Callable[[float], float], wanted: float, bounds: tuple[float, float] = RATE_BOUNDS) -> float:
    """The argument at which a rising function has a value, to a precision of 1e-12 in its logarithm."""
    low, high = np.log(bounds[0]), np.log(bounds[1])
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(float(np.exp(middle))) < wanted else (low, middle)
    return float(np.exp((low + high) / 2))
