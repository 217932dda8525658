"""Topologies with one-way edges, for lines that are much slower in one direction, or open in one only."""

from __future__ import annotations

from thinwire_proto.gossip.topology import Edges, Layout, register_topology


@register_topology("directed-exponential", directed=True)
def directed_exponential(layout: Layout) -> Edges:
    """Each node sends to the one at distance 1, then 2, then 4, … (Assran et al., Stochastic Gradient Push, arXiv
    1811.10792)."""
    distances = range((layout.nodes - 1).bit_length())
    return [
        [(node, (node + (1 << exponent)) % layout.nodes) for node in range(layout.nodes)] for exponent in distances
    ] or [[]]
