"""Local steps of AdamW with an all-reduce of all parameters after each H of them, as in DiLoCo (arXiv 2311.08105).

    T = (E[max Σ_H C] + X) / H

The sum of H times varies less than H single ones, so waiting for the slowest costs less too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from thinwire_planner.methods.all_reduce import exchange_s
from thinwire_planner.methods.method import Forecast, FormulaVariant, Setting, Variant, register_method
from thinwire_proto.all_reduce import ring_bytes

FAMILY = "local steps"
DRAWS = 200
"""Sums of H times of each node, of which the mean of the largest is taken."""
NUMBERS_MAX = 400_000


def _forecast(setting: Setting, *, steps: int) -> Forecast:
    draws = max(8, min(DRAWS, NUMBERS_MAX // (steps * setting.nodes)))
    times = setting.compute.draw(setting.seed, draws * steps, setting.speeds)
    slowest = times.reshape(draws, steps, setting.nodes).sum(axis=1).max(axis=1)
    computing, exchange = float(slowest.mean()) / steps, exchange_s(setting) / steps
    return Forecast(
        computing + exchange,
        ring_bytes(setting.nodes) / steps,
        (("computing", computing), ("exchange", exchange)),
    )


@register_method("local-steps")
def local_steps(setting: Setting) -> Iterator[Variant]:
    for steps in setting.local_steps:
        yield FormulaVariant(
            f"local steps, H = {steps}",
            FAMILY,
            partial(_forecast, steps=steps),
            is_overlapped=False,
            looseness=4.0 + steps,
            arm=f"diloco-{steps}",
            caution="learns least in a step: 28% above AdamW's loss with H = 16, 52% with H = 4 (docs/convergence)",
        )
