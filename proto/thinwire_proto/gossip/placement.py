"""Places nodes on a topology so that iterations are short. Pure.

The problem: which node stands at which place of the graph decides which lines are used. There are n! placements.

What fails: to make the slowest edge of each iteration as short as can be, which is DT-FM's cost (Yuan et al., arXiv
2206.01288) for one level of communication. It puts slow lines side by side. But a node that waited for a slow message
sends its own later, so two slow lines next to each other delay each other in turn, and rings of mixed lines were slower
by 14% than with random places (docs/log/decentralized.md).

The sketch: the cost is the time of an iteration itself, by the recurrence of when each node has finished it,

    F_i(t) = max(F_i(t−1) + C_i, max_j F_j(t−1) + t_ij),

which grows at one rate for all nodes (Baccelli et al., Synchronization and Linearity, 1992). From the places as they
are, two nodes change places, or a stretch of places is turned round; the best of a few such moves is taken if it is no
worse. Many placements are computed together, because the arrays are small.

All moves are drawn with mix64, so a seed gives the same placement on all machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from thinwire_proto.exact.mix64 import mix64
from thinwire_proto.gossip.arcs import Arcs

Floats = NDArray[np.float64]
Orders = NDArray[np.intp]
Order = tuple[int, ...]
"""The node at each place."""
STARTS, ROUNDS, MOVES = 3, 100, 12
"""Searches: the first one begins with the nodes as they are, the others with drawn places. Rounds of each, and moves
that are compared in a round."""
CYCLES = 3
"""Cycles that are gone through for a cost; the first one is not counted."""
MESSAGE_WEIGHT = 1e-3
"""Of the mean message in the cost, so that placements with equally long iterations differ."""


def place(cycle: Sequence[Arcs], message_s: Floats, computing_s: Floats, seed: int) -> Order:
    """The best placement that was found, at least as good as the order of the nodes.

    message_s: seconds of a message, by sender and receiver, [n, n]. computing_s: seconds of an iteration alone, [n].
    """
    nodes = len(message_s)
    given = np.arange(nodes)
    if nodes < 3 or all(len(arcs.senders) == nodes * (nodes - 1) for arcs in cycle):
        return tuple(given.tolist())  # a complete graph is the same for all orders

    def seconds(orders: Orders) -> Floats:
        return iteration_seconds(orders, cycle, message_s, computing_s)

    starts = [given, *(_drawn(nodes, mix64(mix64(seed) - start)) for start in range(1, STARTS))]
    found = [_improved(start, seconds, mix64(seed + number)) for number, start in enumerate(starts)]
    best = int(seconds(np.stack(found)).argmin())
    return tuple(found[best].tolist())


def _improved(order: Orders, seconds: Callable[[Orders], Floats], seed: int) -> Orders:
    least = seconds(order[None])[0]
    for round_ in range(ROUNDS):
        moved = np.stack([_moved(order, mix64(seed + round_ * MOVES + move)) for move in range(MOVES)])
        costs = seconds(moved)
        chosen = int(costs.argmin())
        if costs[chosen] <= least:
            order, least = moved[chosen], costs[chosen]
    return order


def _drawn(nodes: int, seed: int) -> Orders:
    return np.asarray(sorted(range(nodes), key=lambda node: mix64(seed + node)), np.intp)


def iteration_seconds(orders: Orders, cycle: Sequence[Arcs], message_s: Floats, computing_s: Floats) -> Floats:
    """The cost of placements [placements, n]: seconds of an iteration in the long run, and a little of the mean
    message. Other arguments: see `place`."""
    computing = computing_s[orders]
    messages = [message_s[orders[:, arcs.senders], orders[:, arcs.receivers]] for arcs in cycle]
    none = np.full((len(orders), 1), -np.inf)
    finished = since = np.zeros(orders.shape)
    for number in range(CYCLES):
        if number == 1:
            since = finished
        for arcs, seconds in zip(cycle, messages, strict=True):
            arrived = np.concatenate([finished[:, arcs.senders] + seconds, none], axis=1)
            finished = np.maximum(finished + computing, arrived[:, arcs.heard].max(axis=2))
    rate = ((finished - since) / ((CYCLES - 1) * len(cycle))).mean(axis=1)
    used = [seconds.mean(axis=1) for seconds in messages if seconds.shape[1]]
    return np.asarray(rate + MESSAGE_WEIGHT * (np.mean(used, axis=0) if used else 0.0))


def _moved(order: Orders, drawn: int) -> Orders:
    """Two nodes change places, or the places from one to the other are turned round."""
    one, other = sorted((drawn % len(order), (drawn >> 20) % len(order)))
    moved: Orders = order.copy()
    if drawn >> 63:
        moved[one : other + 1] = moved[one : other + 1][::-1]
    else:
        moved[[one, other]] = moved[[other, one]]
    return moved
