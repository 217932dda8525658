"""Splits the gain over all-reduce into fewer bytes, overlap, and not waiting for all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from thinwire_planner.choosing.choice import Predicted

ALL_REDUCE = "all-reduce, DDP"


@dataclass(frozen=True)
class Gain:
    """Factors whose product is the gain over all-reduce.

    exchange: the same method, computing and exchanging in turn, over all-reduce; less than 1 if it is slower. overlap:
    computing meanwhile. overlap_share: its part of the logarithms, 0 where there is no gain.
    """

    total: float
    exchange: float
    overlap: float

    @property
    def overlap_share(self) -> float:
        logarithms = [math.log(factor) for factor in (self.exchange, self.overlap)]
        rising = sum(max(0.0, one) for one in logarithms)
        return max(0.0, logarithms[1]) / rising if rising else 0.0


def gain_of(taken: Predicted, by_name: Mapping[str, Predicted]) -> Gain | None:
    """The gain of a variant over all-reduce; None without both to compare with."""
    baseline = by_name.get(ALL_REDUCE)
    if baseline is None or taken is baseline:
        return None
    turn = by_name.get(taken.variant.without_overlap, taken)
    return Gain(baseline.seconds / taken.seconds, baseline.seconds / turn.seconds, turn.seconds / taken.seconds)
