"""Takes the fastest method by the time of a step or to a loss, or the plainest of those about as fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from thinwire_planner.methods.method import Forecast, Setting, Variant
from thinwire_proto.errors import ConfigError

TIE = 0.03
"""Methods within this of the fastest count as equally fast: measurements repeat no better."""
BYTES_DEAR = 1e-9
"""Weight of bytes in the order of equally plain variants."""


@dataclass(frozen=True)
class Predicted:
    """A variant with its forecast. to_loss_s: seconds to the wanted loss; None if no curve is known. arm: whose curve
    that is."""

    variant: Variant
    forecast: Forecast
    to_loss_s: float | None = None
    arm: str = ""

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def seconds(self) -> float:
        return self.forecast.seconds


def predict(variants: Iterable[Variant], setting: Setting) -> list[Predicted]:
    """The forecasts of all variants that the setting allows."""
    found = []
    for variant in variants:
        try:
            found.append(Predicted(variant, variant.forecast(setting)))
        except ConfigError:
            continue  # a topology that cannot join so many nodes
    return found


def step_s(predicted: Predicted) -> float:
    return predicted.seconds


def take(candidates: Sequence[Predicted], cost_s: Callable[[Predicted], float] = step_s) -> Predicted:
    """The one to take: of those within TIE of the least cost, the one closest to an exact average.

    Variants with a caution are passed over, unless there are no others.
    """
    sound = [one for one in candidates if not one.variant.caution] or list(candidates)
    least = min(map(cost_s, sound))
    equal = [one for one in sound if cost_s(one) <= least * (1 + TIE)]
    return min(equal, key=lambda one: (one.variant.looseness + BYTES_DEAR * one.forecast.bytes_a_parameter, one.name))


def best_of_families(
    candidates: Sequence[Predicted], cost_s: Callable[[Predicted], float] = step_s
) -> dict[str, Predicted]:
    """The one to take of each family, the fastest family first."""
    families: dict[str, list[Predicted]] = {}
    for one in candidates:
        families.setdefault(one.variant.family, []).append(one)
    best = [take(members, cost_s) for members in families.values()]
    return {one.variant.family: one for one in sorted(best, key=cost_s)}


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
