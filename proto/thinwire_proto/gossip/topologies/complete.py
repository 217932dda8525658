"""Everybody with everybody."""

from __future__ import annotations

from itertools import combinations

from thinwire_proto.gossip.topology import Edges, Layout, register_topology


@register_topology("complete")
def complete(layout: Layout) -> Edges:
    """Each node mixes with all others. An iteration averages exactly."""
    return [list(combinations(range(layout.nodes), 2))]
