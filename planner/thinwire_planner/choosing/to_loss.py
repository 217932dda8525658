"""The time to a loss: the tokens that a method needs by its measured curve, times the predicted time of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from thinwire_planner.choosing.choice import Predicted

Curve = Sequence[tuple[float, float]]
"""(tokens of all nodes, loss), by tokens."""


def tokens_to(curve: Curve, loss: float) -> float | None:
    """The tokens at which a curve first reaches a loss, interpolated in the logarithm of tokens; None if it never
    does."""
    before: tuple[float, float] | None = None
    for tokens, reached in curve:
        if reached <= loss:
            if before is None or before[1] == reached:
                return tokens
            part = (before[1] - loss) / (before[1] - reached)
            return math.exp(math.log(before[0]) + part * (math.log(tokens) - math.log(before[0])))
        before = (tokens, reached)
    return None


def with_times(
    candidates: Sequence[Predicted], curves: Mapping[str, Curve], loss: float, tokens_a_step: float
) -> list[Predicted]:
    """The same forecasts, with the seconds to the loss where a curve of the variant's arms reaches it: the first one
    that does."""
    found = []
    for one in candidates:
        needed = {arm: tokens_to(curves[arm], loss) for arm in one.variant.arms if arm in curves}
        reached = [(tokens / tokens_a_step * one.seconds, arm) for arm, tokens in needed.items() if tokens is not None]
        to_loss_s, arm = min(reached, default=(None, ""))
        found.append(replace(one, to_loss_s=to_loss_s, arm=arm))
    return found


def loss_cost_s(predicted: Predicted) -> float:
    """The time to the loss, as the cost of a choice; infinite without a curve."""
    return math.inf if predicted.to_loss_s is None else predicted.to_loss_s
