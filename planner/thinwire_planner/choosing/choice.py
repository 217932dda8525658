"""Takes the fastest method by the time of a step, or the plainest of those about as fast."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from thinwire_planner.methods.method import Forecast, Setting, Variant
from thinwire_proto.errors import ConfigError

TIE = 0.03
"""Methods within this of the fastest count as equally fast: measurements repeat no better."""
BYTES_DEAR = 1e-9
"""Weight of bytes in the order of equally plain variants."""


@dataclass(frozen=True)
class Predicted:
    variant: Variant
    forecast: Forecast

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


def take(candidates: Sequence[Predicted]) -> Predicted:
    """The one to take: of those within TIE of the fastest, the one closest to an exact average.

    Variants with a caution are passed over, unless there are no others.
    """
    sound = [one for one in candidates if not one.variant.caution] or list(candidates)
    least = min(one.seconds for one in sound)
    equal = [one for one in sound if one.seconds <= least * (1 + TIE)]
    return min(equal, key=lambda one: (one.variant.looseness + BYTES_DEAR * one.forecast.bytes_a_parameter, one.name))


def best_of_families(candidates: Sequence[Predicted]) -> dict[str, Predicted]:
    """The one to take of each family, the fastest family first."""
    families: dict[str, list[Predicted]] = {}
    for one in candidates:
        families.setdefault(one.variant.family, []).append(one)
    best = map(take, families.values())
    return {one.variant.family: one for one in sorted(best, key=lambda one: one.seconds)}
