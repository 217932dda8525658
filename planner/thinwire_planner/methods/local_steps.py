"""Local steps of Muon with an all-reduce of all parameters after each H of them, as in MuLoCo (arXiv 2505.23725).
Those of AdamW, as in DiLoCo (arXiv 2311.08105), take as long and learn less (docs/convergence).

    T = (E[max Σ_H C] + X) / H

The sum of H times varies less than H single ones, so waiting for the slowest costs less too. E[max Σ_H C] is found from
draws, and lies between what the slowest node needs by itself and H times E[max C].
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from thinwire_planner.methods.all_reduce import exchange_s
from thinwire_planner.methods.method import METHODS, Forecast, Setting, Variant
from thinwire_proto.all_reduce import ring_bytes

FAMILY = "local steps"
LOCAL_STEPS = 32
"""H in docs/convergence, about the 30 that are published."""
TOKENS = 3.48
"""As in `Forecast`, with four nodes of four samples (docs/convergence: muloco). At the long horizon it ran at one rate
alone, so it is taken to end as far above dense Muon as at the short one."""
DRAWS = 200
"""Sums of H times of each node, of which the mean of the largest is taken."""
DRAWS_MIN = 8
NUMBERS_MAX = 400_000


def waiting_s(setting: Setting, steps: int) -> float:
    """E[max Σ_H C] / H, H = steps."""
    if steps == 1:
        return setting.slowest_s
    draws = max(DRAWS_MIN, min(DRAWS, NUMBERS_MAX // (steps * setting.nodes)))
    times = setting.compute.draw(setting.seed, draws * steps, setting.speeds)
    sums = times.reshape(draws, steps, setting.nodes).sum(axis=1)
    expected = steps * setting.compute.mean_s / np.asarray(setting.speeds)
    sums += expected - sums.mean(axis=0)  # so that chance does not end below a node's own mean
    return min(float(sums.max(axis=1).mean()) / steps, setting.slowest_s)


def _forecast(setting: Setting) -> Forecast:
    computing, exchange = waiting_s(setting, LOCAL_STEPS), exchange_s(setting) / LOCAL_STEPS
    return Forecast(
        computing + exchange,
        ring_bytes(setting.nodes) / LOCAL_STEPS,
        (("computing", computing), ("exchange", exchange)),
        TOKENS,
    )


@METHODS.register("local-steps")
def local_steps(setting: Setting) -> Iterator[Variant]:
    name = f"local steps of Muon, H = {LOCAL_STEPS}"
    yield Variant(name, FAMILY, _forecast, is_overlapped=False, looseness=4.0 + LOCAL_STEPS)
