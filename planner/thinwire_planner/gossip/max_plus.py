"""The time of an iteration of gossip, from the recurrence of when each node has finished it.

    overlapped      F_i(t) = max(F_i(t−1) + C_i(t), max_j F_j(t−1−slack) + t_ij)
    not overlapped  F_i(t) = max(F_i(t−1) + C_i(t), max_j F_j(t−1−slack) + C_j(t−slack) + t_ij)

with j over the nodes that i hears in iteration t. Computing and exchange go on side by side in the first, and one after
the other in the second. The maximum and the sum make this a linear recurrence in the max-plus algebra (Baccelli et al.,
Synchronization and Linearity, 1992), so F grows at one rate T = lim F/t for all nodes that hear of each other. With
random C the limit is found by going through many iterations, of which the first are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from thinwire_planner.timing.link import Floats
from thinwire_proto.gossip.topology import Arcs

WARMUP_PART = 0.25
ITERATIONS_MIN = 48
WORK_MAX = 20_000_000
"""Largest number of edges that are gone through for one prediction, beyond the least number of iterations."""


def iterations_for(cycle: Sequence[Arcs], most: int) -> int:
    """The number of iterations of a prediction: fewer where there are many edges."""
    edges = sum(arcs.heard.size for arcs in cycle) / len(cycle)
    return int(min(most, max(ITERATIONS_MIN, WORK_MAX / edges, 4 * len(cycle))))


def iteration_s(
    cycle: Sequence[Arcs],
    transfers_s: Sequence[Floats],
    computing_s: Floats,
    *,
    slack: int = 0,
    is_overlapped: bool = True,
) -> float:
    """Mean seconds of an iteration in the long run.

    cycle, transfers_s: the arcs of each iteration of the cycle, and the seconds of a message on each. computing_s:
    [iterations, nodes].
    """
    count, nodes = computing_s.shape
    finished = np.zeros(nodes)
    ready: deque[Floats] = deque(maxlen=slack + 1)
    """The times that messages are sent at, of this iteration and of the `slack` before it."""
    warm = int(WARMUP_PART * count)
    since = 0.0
    for iteration, own_s in enumerate(computing_s):
        if iteration == warm:
            since = float(finished.mean())
        arcs, transfer_s = cycle[iteration % len(cycle)], transfers_s[iteration % len(cycle)]
        computed = finished + own_s
        ready.append(finished if is_overlapped else computed)
        finished = computed
        if len(ready) > slack and len(arcs.senders):
            arrived = np.append(ready[0][arcs.senders] + transfer_s, -np.inf)
            finished = np.maximum(computed, arrived[arcs.heard].max(axis=1))
    return float((finished.mean() - since) / (count - warm))
