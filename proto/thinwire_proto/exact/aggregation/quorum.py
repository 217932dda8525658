"""The sum of the votes where the prevailing sign has enough weight, else 0."""

from __future__ import annotations

import numpy as np

from thinwire_proto.contract import QuorumSpec
from thinwire_proto.exact.aggregation import RULES, Weights


@RULES.register("quorum")
def quorum(spec: QuorumSpec, positive: Weights, negative: Weights, total: int) -> Weights:
    """P − N where max(P, N) ≥ ⌈percent · W / 100⌉, else 0."""
    needed = -(-spec.percent * total // 100)
    votes: Weights = positive - negative
    votes[np.maximum(positive, negative) < needed] = 0
    return votes
