"""Topologies with one-way edges for the tests."""

from __future__ import annotations

from itertools import permutations

from thinwire_proto.gossip.topology import Edges, Layout, register_topology

EXPONENTIAL, UNEVEN, EACH_TO_ALL, SOON_UNHEARD = "directed-exponential", "uneven", "each-to-all", "soon-unheard"
UNHEARD_UNTIL = 8
"""The length of the cycle of SOON_UNHEARD."""


def register(rank: int) -> None:
    """A scene that registers these topologies in its process. A process of pytest must not have them: other tests go
    through all that there are."""
    register_topology(UNEVEN, directed=True)(uneven)
    register_topology(EACH_TO_ALL, directed=True)(each_to_all)
    register_topology(SOON_UNHEARD, directed=True)(soon_unheard)


def uneven(layout: Layout) -> Edges:
    """A one-way ring, and an edge across it, so that nodes come to different weights."""
    return [[(0, 2), *((node, (node + 1) % layout.nodes) for node in range(layout.nodes))]]


def each_to_all(layout: Layout) -> Edges:
    return [list(permutations(range(layout.nodes), 2))]


def soon_unheard(layout: Layout) -> Edges:
    """Each to all, but for the last node: the one before it alone sends to it, and after the first iteration of a cycle
    nobody hears of it."""
    last = layout.nodes - 1
    unheard = [*permutations(range(last), 2), (last - 1, last)]
    return [[*unheard, (last, 0)], *[unheard] * (UNHEARD_UNTIL - 1)]
