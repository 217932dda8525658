"""Local steps of Muon with an all-reduce of all parameters after each H of them, as in MuLoCo (arXiv 2505.23725).
Those of AdamW, as in DiLoCo (arXiv 2311.08105), take as long and learn less (docs/convergence).

    T = (E[max Σ_H C] + X) / H

The sum of H times varies less than H single ones, so waiting for the slowest costs less too. E[max Σ_H C] is found from
draws, and lies between what the slowest node needs by itself and H times E[max C].
"""

from __future__ import annotations

from collections.abc import Iterator

from thinwire_planner.methods.all_reduce import exchange_s
from thinwire_planner.methods.method import METHODS, Forecast, Setting, Variant
from thinwire_proto.all_reduce import ring_bytes

FAMILY = "local steps"
LOCAL_STEPS = 32
"""H in docs/convergence, about the 30 that are published."""
TOKENS = 3.34
"""As in `Forecast`, with four nodes of four samples (docs/convergence: muloco). At the long horizon it ran at one rate
alone, so it is taken to end as far above dense Muon as at the short one."""


def _forecast(setting: Setting) -> Forecast:
    computing, exchange = setting.waiting_s(LOCAL_STEPS), exchange_s(setting, LOCAL_STEPS) / LOCAL_STEPS
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
