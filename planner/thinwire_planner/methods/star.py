"""The coordinator's star.

    exchange = t(up) + Σup/D₀ + merge + n·U/U₀ + t(U)
    base age 0: T = E[max C] + exchange          nodes wait for the update
    base age 1: T = max(E[max C], exchange)      nodes compute the next round meanwhile
    by the clock, base age 1: T = max(n/Σ 1/E[C], exchange); slow nodes contribute fewer samples, and nobody waits

up and U: bytes of a contribution and of an update; D₀, U₀: the coordinator's line. A node's own arithmetic is added to
what computing takes.

A round by the clock ends after its length, always. Until then, a node computes samples one after the other, and its
contribution weighs as many as it has. The work of a step is n gradients, whoever computes them. In a second a node
computes 1/E[C] of one, and these rates add up: n gradients take n/Σ 1/E[C]. The mean of the nodes' times would be right
for equal nodes only: one node of 100 s beside nine of 1 s would make a step ten times as long, though the nine need no
more than 1.11 s for ten gradients. Two assumptions: the contract's `round.samples` is what the fastest node computes in
a round, because further samples add no weight; and no sample takes longer than the base age allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from thinwire_planner.methods.method import METHODS, STAR_UP_BYTES, Forecast, Setting, Variant
from thinwire_planner.timing.link import transfer_s, wire_bits

FAMILY = "star"
BY_THE_CLOCK = "star, base age 1, by the clock"


def own_s(setting: Setting) -> float:
    """A node's own arithmetic in a round: compress and apply."""
    return setting.parameters * (1 / setting.rates.compress + 1 / setting.rates.apply)


def sizes_bytes(setting: Setting) -> tuple[float, float]:
    """(bytes of a contribution, bytes of an update)."""
    return STAR_UP_BYTES * setting.parameters, setting.update_bytes * setting.parameters


def node_transfer_s(setting: Setting, size_bytes: float, *, upward: bool) -> float:
    """A message over the slowest line of a node, after the computing of a round."""
    network = setting.network
    rate = (network.up_bits_s if upward else network.down_bits_s).min() / network.per_host
    return float(
        transfer_s(
            size_bytes,
            network.typical_rtt_s,
            rate,
            loss=network.loss,
            congestion=network.congestion,
            idle_s=setting.mean_s,
        )
    )


def exchange_parts(setting: Setting) -> tuple[tuple[str, float], ...]:
    """The way of the votes in, the merge, and the way of the update out."""
    up, update = sizes_bytes(setting)
    return (
        ("upload", node_transfer_s(setting, up, upward=True)),
        ("into the coordinator", wire_bits(up) * setting.nodes / setting.coordinator_down_bits_s),
        ("merge", setting.nodes * setting.parameters / setting.rates.merge),
        ("out of the coordinator", wire_bits(update) * setting.nodes / setting.coordinator_up_bits_s),
        ("download", node_transfer_s(setting, update, upward=False)),
    )


def _forecast(setting: Setting, *, base_age: int, waits: bool) -> Forecast:
    computing = (setting.slowest_s if waits else setting.together_s) + own_s(setting)
    parts = exchange_parts(setting)
    exchange = sum(seconds for _, seconds in parts)
    up, update = sizes_bytes(setting)
    return Forecast(
        max(computing, exchange) if base_age else computing + exchange,
        (up + update) / setting.parameters,
        (("computing", computing), *parts),
    )


@METHODS.register("star")
def star(setting: Setting) -> Iterator[Variant]:
    age_0 = partial(_forecast, base_age=0, waits=True)
    age_1 = partial(_forecast, base_age=1, waits=True)
    by_clock = partial(_forecast, base_age=1, waits=False)
    names = ("star, base age 0", "star, base age 1", BY_THE_CLOCK)
    yield Variant(names[0], FAMILY, age_0, is_overlapped=False, looseness=1.0)
    for name, formula, looseness in ((names[1], age_1, 1.1), (names[2], by_clock, 1.2)):
        yield Variant(name, FAMILY, formula, is_overlapped=True, looseness=looseness, without_overlap=names[0])
