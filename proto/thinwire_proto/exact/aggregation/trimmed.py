"""The sum of the votes without the extreme ones of each side."""

from __future__ import annotations

import numpy as np

from thinwire_proto.contract import TrimmedSpec
from thinwire_proto.exact.aggregation import RULES, Weights


@RULES.register("trimmed")
def trimmed(spec: TrimmedSpec, positive: Weights, negative: Weights, total: int) -> Weights:
    """clamp(P, t, W − t) − clamp(N, t, W − t), where t = ⌊percent · W / 100⌋.

    This is the sum of W values +1, 0 (no vote) and −1 without the t largest and the t smallest of them. Of the middle,
    the values + are those of the P largest that stand neither among the first t nor among the last t.
    """
    cut = spec.percent * total // 100
    low, high = np.int16(cut), np.int16(total - cut)
    votes: Weights = positive.clip(low, high) - negative.clip(low, high)
    return votes
