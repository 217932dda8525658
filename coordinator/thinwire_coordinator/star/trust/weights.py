"""The weight that each node has earned, relative to the node that has earned most.

A newcomer begins at NEWCOMER, and rises with each counted round to 1 at FULL_AFTER. The weights are relative, so that
the newcomers of a new run count fully among themselves: what is low is low beside nodes that have earned more.

A thousand fresh keys cost nothing. So the newcomers of one address group together weigh at most GROUP_SHARE of what
everybody else weighs, though always as much as one newcomer. Weights are integers on the wire, at least 1 of
`weight_max`, so if the share of each were below that, some of them count and the others wait for their turn.

Founders came before any node had its full weight. They do not all reach it in the same round, since some were counted
a round less. If all founders are of one group, such as a university or a tunnel, the bound would mute most of them as
soon as the first has its full weight. So it does not hold for them until FOUNDERS_ROUNDS later. Nodes of their group
that come later are bounded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from thinwire_coordinator.star.trust.standing import Standing

NEWCOMER = 1 / 8
FULL_AFTER = 16
"""Counted rounds after which a node has its full weight."""
GROUP_SHARE = 0.5
"""Of what everybody else weighs, where the newcomers of another group count as one of them."""
FOUNDERS_ROUNDS = 4 * FULL_AFTER
"""Rounds in which founders may still earn their full weight, once the first of them has it."""
TINY = 1e-9


def earned(counted: int) -> float:
    """The weight of a node after so many counted rounds, NEWCOMER to 1."""
    return NEWCOMER + (1 - NEWCOMER) * min(1.0, counted / FULL_AFTER)


def weights_of(
    standings: Sequence[Standing], now: float, turn: int, weight_max: int, *, founding: bool = False
) -> dict[str, float]:
    """The weight of each node, 0 to 1. turn: counts upwards; decides who counts in a group that is too large.

    founding: whether the time of the founders is not over yet.
    """
    weights = {one.node: 0.0 if one.suspected or one.banned_until > now else earned(one.counted) for one in standings}
    counting = [one for one in standings if weights[one.node]]
    first = {one.group for one in counting if one.counts_as_founder or one.counted >= FULL_AFTER}
    free = first if founding and len(first) == 1 else ()
    newcomers: defaultdict[str, list[str]] = defaultdict(list)
    for one in counting:
        if one.group and one.counted < FULL_AFTER and not (one.counts_as_founder and one.group in free):
            newcomers[one.group].append(one.node)
    most_new = {group: max(weights[node] for node in nodes) for group, nodes in newcomers.items()}
    established = sum(weights.values()) - sum(weights[node] for nodes in newcomers.values() for node in nodes)
    shared: dict[str, float] = {}  # of each group with a bound: GROUP_SHARE of what everybody else weighs
    for group, nodes in newcomers.items():
        others = established + sum(most_new.values()) - most_new[group]
        if others > TINY:
            shared[group] = GROUP_SHARE * others
            bound = max(shared[group], most_new[group])
            shrink = min(1.0, bound / sum(weights[node] for node in nodes))
            for node in nodes:
                weights[node] *= shrink
    most = max(weights.values(), default=0.0)
    if not most:
        return weights
    weights = {node: weight / most for node, weight in weights.items()}
    for group, share in shared.items():
        units_max = max(_down(share / most * weight_max), _up(most_new[group] / most * weight_max))
        weights |= _whole({node: weights[node] for node in newcomers[group]}, units_max, turn, weight_max)
    return weights


def _whole(weights: dict[str, float], units_max: int, turn: int, weight_max: int) -> dict[str, float]:
    """The weights of a group's newcomers, so that they weigh at most units_max together once each is rounded up. Nodes
    with less than one unit weigh in turns what they weigh together, so that rounding gives them no more."""
    shares = {node: weight * weight_max for node, weight in weights.items()}
    wanted = _down(sum(_up(share) if share >= 1 else share for share in shares.values()))
    units = {node: _down(share) for node, share in shares.items()}
    rest = sorted(node for node in shares if _up(shares[node]) > units[node])
    spare = min(units_max, max(1, wanted)) - sum(units.values())
    if spare >= len(rest):
        return weights
    first = turn * spare % len(rest)
    for number in range(spare):
        units[rest[(first + number) % len(rest)]] += 1
    return {node: unit / weight_max for node, unit in units.items()}


def _down(units: float) -> int:
    return math.floor(units + TINY)


def _up(units: float) -> int:
    return math.ceil(units - TINY)
