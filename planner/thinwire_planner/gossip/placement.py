"""Places nodes on a topology so that iterations are short. Pure.

The problem: which node stands at which place of the graph decides which lines are used, and how often. There are n!
placements.

What fails: to make the slowest edge of each iteration as short as can be, which is DT-FM's cost (Yuan et al., arXiv
2206.01288) for one level of communication. It knows neither that a node which waited for a slow message sends its own
later, nor that a line which is idle in some iterations catches up. The time of an iteration with lines that are always
free fails too: it expects a node to send its next message over a slow line while the one before is on its way
(docs/log/decentralized.md has both, and what real nodes did).

The sketch: the cost is the time of an iteration itself. A node has finished iteration t when it has computed and all
messages of its peers are in, and then its own leave, one after the other over its line:

    F_i(t) = max(F_i(t−1) + C_i, max_j A_ji(t)),  A_ji(t) = S_ji(t) + delay_ji,
    S_ji(t) = max(F_j(t−1), S_j before) + sending_ji

It is at least as long as the busiest line carries messages in it.

From the places as they are, and from drawn ones, two nodes change places, or a stretch of places is turned round; the
best of a few such moves is taken if it is no worse. Many placements are computed together, because arrays are small.

All moves are drawn with mix64, so a seed gives the same placement on all machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from thinwire_planner.timing.link import Ints, LineSeconds
from thinwire_proto.exact.mix64 import mix64
from thinwire_proto.gossip.arcs import Arcs, Part

Floats = NDArray[np.float64]
Order = tuple[int, ...]
"""The node at each place."""
Used = list[list[tuple[Part, Floats, Floats]]]
"""Of each iteration of a cycle, its arcs in parts, and for each placement the seconds of sending and of delay."""
STARTS, ROUNDS, MOVES = 3, 100, 12
"""Searches: the first one begins with the nodes as they are, the others with drawn places. Rounds of each, and moves
that are compared in a round."""
CYCLES, COUNTED = 4, 2
"""Cycles that are gone through for a cost, and how many of them count."""
REST_WEIGHT = 1e-3
"""In the cost of a placement, of what else should be short."""


def place(cycle: Sequence[Arcs], lines: LineSeconds, computing_s: Floats, seed: int, rounds: int = ROUNDS) -> Order:
    """The best placement that was found, at least as good as the order of the nodes.

    computing_s: seconds of an iteration alone, [n]. rounds: of each search.
    """
    nodes = len(computing_s)
    given = np.arange(nodes)
    if nodes < 3 or all(len(arcs.senders) == nodes * (nodes - 1) for arcs in cycle):
        return tuple(given.tolist())  # a complete graph is the same for all orders

    def cost(orders: Ints) -> Floats:
        return _cost(orders, cycle, lines, computing_s)

    starts = [given, *(_drawn(nodes, mix64(mix64(seed) - start)) for start in range(1, STARTS))]
    found = [_improved(start, cost, mix64(seed + number), rounds) for number, start in enumerate(starts)]
    best = int(cost(np.stack(found)).argmin())
    return tuple(found[best].tolist())


def iteration_seconds(orders: Ints, cycle: Sequence[Arcs], lines: LineSeconds, computing_s: Floats) -> Floats:
    """Seconds of an iteration in the long run, of each placement, [placements]. orders: the nodes at the places,
    [placements, n]. Other arguments: see `place`."""
    growth, busiest = _seconds(_used(orders, cycle, lines), computing_s[orders])
    return np.asarray(np.maximum(growth, busiest))


def _cost(orders: Ints, cycle: Sequence[Arcs], lines: LineSeconds, computing_s: Floats) -> Floats:
    """The same, and a little of what else should be short: many placements have the same busiest line, and a search
    would find no way from one to a better one."""
    used = _used(orders, cycle, lines)
    growth, busiest = _seconds(used, computing_s[orders])
    messages = [(sending + delay).mean(axis=1) for parts in used for _, sending, delay in parts]
    rest = growth + (np.mean(messages, axis=0) if messages else 0.0)
    return np.asarray(np.maximum(growth, busiest) + REST_WEIGHT * rest)


def _used(orders: Ints, cycle: Sequence[Arcs], lines: LineSeconds) -> Used:
    ends = [[(part, (orders[:, part[0]], orders[:, part[1]])) for part in arcs.parts] for arcs in cycle]
    return [[(part, lines.sending_s[at], lines.delay_s[at]) for part, at in parts] for parts in ends]


def _seconds(used: Used, computing_s: Floats) -> tuple[Floats, Floats]:
    """Seconds of an iteration in the last cycles, and those for which the busiest line carries messages in it.

    The first may be less, until all nodes have noticed that line."""
    finished = since = np.zeros(computing_s.shape)
    free = np.zeros(computing_s.shape)  # when each node's line has carried all messages before
    busy = np.zeros(computing_s.shape)
    for number in range(CYCLES):
        if number == CYCLES - COUNTED:
            since = finished
        for parts in used:
            left, finished = finished, finished + computing_s
            for (senders, receivers), sending, delay in parts:
                free[:, senders] = np.maximum(free[:, senders], left[:, senders]) + sending
                finished[:, receivers] = np.maximum(finished[:, receivers], free[:, senders] + delay)
                busy[:, senders] += sending
    growth = ((finished - since) / (COUNTED * len(used))).mean(axis=1)
    return growth, busy.max(axis=1) / (CYCLES * len(used))


def _improved(order: Ints, cost: Callable[[Ints], Floats], seed: int, rounds: int) -> Ints:
    least = cost(order[None])[0]
    for round_ in range(rounds):
        moved = np.stack([_moved(order, mix64(seed + round_ * MOVES + move)) for move in range(MOVES)])
        costs = cost(moved)
        chosen = int(costs.argmin())
        if costs[chosen] <= least:
            order, least = moved[chosen], costs[chosen]
    return order


def _drawn(nodes: int, seed: int) -> Ints:
    return np.asarray(sorted(range(nodes), key=lambda node: mix64(seed + node)), np.intp)


def _moved(order: Ints, drawn: int) -> Ints:
    """Two nodes change places, or the places from one to the other are turned round."""
    one, other = sorted((drawn % len(order), (drawn >> 20) % len(order)))
    moved: Ints = order.copy()
    if drawn >> 63:
        moved[one : other + 1] = moved[one : other + 1][::-1]
    else:
        moved[[one, other]] = moved[[other, one]]
    return moved
