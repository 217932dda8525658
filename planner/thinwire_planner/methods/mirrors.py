"""The star with a tree of mirrors: the coordinator sends an update to a few mirrors, and each hands it on.

    T = max(E[max C], t(up) + Σup/D₀ + merge + f·U/U₀ + (d−1)·(RTT/2 + f·U/U₀) + t(U))

f: FAN_OUT; d: the levels of senders that n nodes need. Mirrors have lines like the coordinator's. They help where the
coordinator's line cannot send n updates in a round.
"""

from __future__ import annotations

from collections.abc import Iterator

from thinwire_planner.methods.method import Forecast, FormulaVariant, Setting, Variant, register_method
from thinwire_planner.methods.star import (
    ARM,
    FAMILY,
    node_transfer_s,
    own_s,
    sizes_bytes,
    upload_parts,
)
from thinwire_planner.timing.link import wire_bits

FAN_OUT = 16


def levels(nodes: int) -> int:
    """Levels of senders, the coordinator included, of which each sends to FAN_OUT."""
    count, reached = 1, FAN_OUT
    while reached < nodes:
        count, reached = count + 1, reached * FAN_OUT
    return count


def _forecast(setting: Setting) -> Forecast:
    up, update = sizes_bytes(setting)
    hops = levels(setting.nodes) - 1
    sending = wire_bits(update) * min(FAN_OUT, setting.nodes) / setting.coordinator_up_bits_s
    parts = (
        *upload_parts(setting),
        ("out of the coordinator", sending),
        ("through mirrors", hops * (setting.network.typical_rtt_s / 2 + sending)),
        ("download", node_transfer_s(setting, update, upward=False)),
    )
    computing = setting.slowest_s + own_s(setting)
    seconds = max(computing, sum(part for _, part in parts))
    return Forecast(seconds, (up + update) / setting.parameters, (("computing", computing), *parts))


MIRRORED = FormulaVariant(
    "star, mirrors, base age 1",
    FAMILY,
    _forecast,
    is_overlapped=True,
    looseness=1.3,
    without_overlap="star, base age 0",
    arms=(ARM,),
)
"""With so few nodes that they need no mirror, it takes as long as the star at base age 1."""


@register_method("mirrors")
def mirrors(setting: Setting) -> Iterator[Variant]:
    if levels(setting.nodes) > 1:
        yield MIRRORED
