"""Places hosts on a topology so that its slowest edges are as short as can be.

The cost of a placement is that of DT-FM (Yuan et al., Decentralized Training of Foundation Models in Heterogeneous
Environments, arXiv 2206.01288) for one level of communication: the slowest edge of each iteration, averaged over a
cycle. There are n! placements, so swaps are accepted by simulated annealing. A ring is the travelling salesman's
problem with its longest edge in place of its length, for which 2-opt is faster and as good.

All numbers are drawn with mix64, so a seed gives the same placement on all machines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thinwire_planner.timing.link import Floats
from thinwire_planner.timing.max_plus import Arcs
from thinwire_proto.exact.mix64 import mix64

Order = tuple[int, ...]
"""The host at each place."""
MOVES = 4000
MOVES_A_PAIR = 20
"""Moves for each pair of hosts are enough where there are few."""
HEAT_FIRST, HEAT_LAST = 0.3, 0.001
"""Temperatures, as parts of the first cost."""
LENGTH_WEIGHT = 1e-3
"""Of the mean edge in the cost, so that equally slow placements differ."""


@dataclass(frozen=True, eq=False)
class CycleEdges:
    """The edges of all iterations of a cycle, as places. starts: the first edge of each iteration that has any."""

    senders: NDArray[np.intp]
    receivers: NDArray[np.intp]
    starts: NDArray[np.intp]
    iterations: int

    @classmethod
    def of(cls, cycle: Sequence[Arcs]) -> CycleEdges:
        counts = [len(arcs.senders) for arcs in cycle]
        starts = np.cumsum([0, *counts[:-1]])[np.asarray(counts) > 0]
        senders = np.concatenate([arcs.senders for arcs in cycle])
        receivers = np.concatenate([arcs.receivers for arcs in cycle])
        return cls(senders, receivers, starts, len(cycle))


def cost_s(order: Sequence[int], cycle: CycleEdges, pairs: Floats) -> float:
    """The slowest edge of an iteration, averaged over the cycle, and a little of the mean edge."""
    if not len(cycle.senders):
        return 0.0
    place = np.asarray(order)
    edges = pairs[place[cycle.senders], place[cycle.receivers]]
    slowest = np.maximum.reduceat(edges, cycle.starts).sum() / cycle.iterations
    return float(slowest + LENGTH_WEIGHT * edges.mean())


def anneal(cycle: CycleEdges, pairs: Floats, seed: int, moves: int = MOVES) -> Order:
    """The best placement that was found, at least as good as the order of the hosts."""
    hosts = len(pairs)
    moves = min(moves, MOVES_A_PAIR * hosts * hosts)
    order = list(range(hosts))
    cost = first = cost_s(order, cycle, pairs)
    best, best_cost = tuple(order), cost
    if hosts < 3 or not first:
        return best
    for move in range(moves):
        heat = first * HEAT_FIRST * (HEAT_LAST / HEAT_FIRST) ** (move / moves)
        drawn = mix64(mix64(seed) + move)
        one, other = drawn % hosts, (drawn >> 20) % hosts
        if one == other:
            continue
        order[one], order[other] = order[other], order[one]
        found = cost_s(order, cycle, pairs)
        if found <= cost or (drawn >> 40) / (1 << 24) < math.exp((cost - found) / heat):
            cost = found
            if cost < best_cost:
                best, best_cost = tuple(order), cost
        else:
            order[one], order[other] = order[other], order[one]
    return best


def two_opt(pairs: Floats) -> Order:
    """A ring through all hosts whose longest edge, and then whose length, no reversal of a stretch makes shorter."""
    hosts = len(pairs)
    order = _nearest_neighbours(pairs)
    improved = hosts > 3
    while improved:
        improved = False
        for first in range(hosts - 1):
            for last in range(first + 2, hosts):
                if first == 0 and last == hosts - 1:
                    continue  # the whole ring the other way round
                a, b, c, d = order[first], order[first + 1], order[last], order[(last + 1) % hosts]
                old, new = (pairs[a, b], pairs[c, d]), (pairs[a, c], pairs[b, d])
                if (max(new), sum(new)) < (max(old), sum(old)):
                    order[first + 1 : last + 1] = reversed(order[first + 1 : last + 1])
                    improved = True
    return tuple(order)


def _nearest_neighbours(pairs: Floats) -> list[int]:
    order, left = [0], set(range(1, len(pairs)))
    while left:
        nearest = min(left, key=lambda host: (float(pairs[order[-1], host]), host))
        order.append(nearest)
        left.remove(nearest)
    return order
