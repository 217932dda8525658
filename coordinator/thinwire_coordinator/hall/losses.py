"""Losses that nodes report: which are plausible, and the median of several, so that no single node decides it."""

from __future__ import annotations

import math
from collections.abc import Iterable

LOSS_MAX = 1e6
"""A larger loss, in nats per token, is refused or passed over."""


def is_plausible(loss: float) -> bool:
    """Whether a loss may be one: finite, and at most LOSS_MAX."""
    return math.isfinite(loss) and abs(loss) <= LOSS_MAX


def weighted_median(weighed: Iterable[tuple[float, float]]) -> float:
    """The median of values with weights above 0. Between two values, each with exactly half of the weight, it is their
    mean, so two equal nodes show their mean. Not a number without any."""
    pairs = sorted((value, weight) for value, weight in weighed if weight > 0)
    half, below = sum(weight for _, weight in pairs) / 2, 0.0
    for number, (value, weight) in enumerate(pairs):
        below += weight
        if below > half:
            return value
        if below == half:
            return (value + pairs[number + 1][0]) / 2
    return math.nan
