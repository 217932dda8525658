"""Topologies with one-way edges for the tests."""

from __future__ import annotations

from thinwire_proto.gossip.topology import Edges, Layout, register_topology

EXPONENTIAL, UNEVEN, EACH_TO_ALL = "directed-exponential", "uneven", "each-to-all"


def register(rank: int) -> None:
    """A scene that registers these topologies in its process. A process of pytest must not have them: other tests go
    through all that there are."""
    register_topology(UNEVEN, directed=True)(uneven)
    register_topology(EACH_TO_ALL, directed=True)(each_to_all)


def uneven(layout: Layout) -> Edges:
    """A one-way ring, and an edge across it, so that nodes come to different weights."""
    return [[(0, 2), *((node, (node + 1) % layout.nodes) for node in range(layout.nodes))]]


def each_to_all(layout: Layout) -> Edges:
    return [[(node, other) for node in range(layout.nodes) for other in range(layout.nodes) if node != other]]
