"""Topologies that are drawn at random, alike on all nodes: unions of random rings.

A union of rings is connected and regular whatever is drawn, and two rings make a good expander in nearly all draws. A
random regular graph of another library may differ between its versions, and so between two nodes.
"""

from __future__ import annotations

from itertools import chain

from thinwire_proto.exact.mix64 import mix64
from thinwire_proto.gossip.topologies.one_peer import matchings_of_ring
from thinwire_proto.gossip.topology import Edges, Layout, register_topology

RINGS = 2
"""Rings of a topology. A node has at most twice as many peers."""


@register_topology("random-regular")
def random_regular(layout: Layout) -> Edges:
    """Each node mixes with four peers in every iteration; fewer if the rings share edges."""
    return [list(chain.from_iterable(chain.from_iterable(_rings(layout))))]


@register_topology("matching")
def matching(layout: Layout) -> Edges:
    """Each node mixes with one of its four peers in an iteration. Few peers, because a node keeps a copy for each."""
    return list(chain.from_iterable(_rings(layout)))


def _rings(layout: Layout) -> list[list[list[tuple[int, int]]]]:
    return [matchings_of_ring(_order(layout, ring)) for ring in range(RINGS)]


def _order(layout: Layout, ring: int) -> list[int]:
    seed = mix64(layout.seed) ^ ring
    return sorted(range(layout.nodes), key=lambda node: (mix64(mix64(seed) + node), node))
