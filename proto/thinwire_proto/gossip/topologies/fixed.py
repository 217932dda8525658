"""Topologies with the same edges in every iteration."""

from __future__ import annotations

from itertools import combinations

from thinwire_proto.gossip.topology import Edges, Layout, register_topology


@register_topology("complete")
def complete(layout: Layout) -> Edges:
    """Each node mixes with all others. An iteration averages exactly."""
    return [list(combinations(range(layout.nodes), 2))]


@register_topology("star")
def star(layout: Layout) -> Edges:
    """Node 0 mixes with all others."""
    return [[(0, node) for node in range(1, layout.nodes)]]


@register_topology("tree")
def tree(layout: Layout) -> Edges:
    """A binary tree with node 0 at its root."""
    return [[((node - 1) // 2, node) for node in range(1, layout.nodes)]]
