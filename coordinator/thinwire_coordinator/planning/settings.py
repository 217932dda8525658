"""Settings that are known to work, and their extension to other sizes.

Everything that was measured here was measured at 0.9M parameters (docs/convergence). For larger models, the rate and
the batch follow the published table of GPT-3 (arXiv 2005.14165, table 2.1), between its points on a logarithmic scale.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from thinwire_proto.contract import DemoSpec

TOKENS_A_PARAMETER = 20
"""Compute-optimal tokens (arXiv 2203.15556)."""
PASSES_MAX = 4
"""Passes over the data up to which repeated text is worth nearly as much as new text (arXiv 2305.16264)."""
TUNING_RATE_PART = 0.1
"""Rate of a run that begins from weights, as a part of the rate from scratch. Usual with AdamW; not measured here."""
ADAPTER_RATE = 1.3e-4
"""Rate of a LoRA adapter: 2/3 of AdamW's 2e-4 (arXiv 2305.14314, table 9); not measured here."""
TUNING_PASSES = 2
"""Passes over the data of a run that begins from weights, or trains an adapter."""
WARMUP_PART, WARMUP_STEPS_MIN, WARMUP_STEPS_MAX = 0.05, 10, 2000


class Point(NamedTuple):
    parameters: float
    learning_rate: float
    batch_tokens: float


POINTS = (
    Point(0.886e6, 2e-3, 4_096),  # docs/convergence: the sweep of learning rates; 16 samples of 256 tokens
    Point(125e6, 4e-4, 0.5e6),  # GPT-3: 6e-4 for AdamW. Here, 2/3 of AdamW's best rate was best
    Point(350e6, 2e-4, 0.5e6),
    Point(1_300e6, 1.33e-4, 1e6),
)
BUDGETS = tuple(DemoSpec(k=k, update_topk=kept) for k, kept in ((96, 320), (44, 352), (44, 176), (22, 176), (22, 88)))
"""Settings of [demo], from the most bytes to the fewest."""
MANY_NODES = 8
"""From so many nodes on, local steps of Muon learn more than `demo`, and with four they learn less
(docs/log/convergence.md). Without a centre too, Muon is chosen from here on (docs/log/decentralized.md)."""
GRADIENT_PULL = 0.5
"""With steps of Muon and one bit a parameter. Four nodes with AdamW learn less by it (docs/log/decentralized.md)."""
LOCAL_STEPS, LOCAL_ROUNDS_MIN = 4, 256
"""Of Muon in a round, and rounds, as in docs/convergence. With fewer rounds, local steps learn less."""
MORE_PASSES_MAX = 0.7
"""What orthogonalizing may take, in passes. In docs/convergence it takes 0.6 of one with four samples a node."""
NARROW_PADDING_MIN = 0.5
"""In tiles that are emptier than this, such as those of an adapter, k is a share of what is in them."""


def budgets(padding: float) -> tuple[DemoSpec, ...]:
    """BUDGETS for a model with this part of padding in its tiles, so that an adapter sends as large a share of its
    parameters as full training does."""
    if padding < NARROW_PADDING_MIN:
        return BUDGETS
    return tuple(
        DemoSpec(k=max(1, round(one.k * (1 - padding))), update_topk=max(1, round(one.update_topk * (1 - padding))))
        for one in BUDGETS
    )


def known_rate(parameters: int) -> float:
    """A peak learning rate for a model of this size, to two digits."""
    return float(f"{_between(parameters, [point.learning_rate for point in POINTS]):.1e}")


def known_batch(parameters: int) -> float:
    """Tokens of all nodes together in a step, for a model of this size."""
    return _between(parameters, [point.batch_tokens for point in POINTS])


def warmup_steps(steps: int) -> int:
    """Steps of warm-up, a fifth of the run at most."""
    return min(max(WARMUP_STEPS_MIN, int(steps * WARMUP_PART)), WARMUP_STEPS_MAX, steps // 5)


def _between(parameters: int, values: list[float]) -> float:
    """Interpolate between POINTS on logarithmic scales; constant below the first and above the last."""
    sizes = [math.log(point.parameters) for point in POINTS]
    at, logs = math.log(max(1, parameters)), [math.log(value) for value in values]
    if at <= sizes[0]:
        return values[0]
    for left in range(len(sizes) - 1):
        if at <= sizes[left + 1]:
            part = (at - sizes[left]) / (sizes[left + 1] - sizes[left])
            return math.exp(logs[left] + part * (logs[left + 1] - logs[left]))
    return values[-1]
