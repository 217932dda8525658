"""Topologies in which a node mixes with one peer, or one group of peers, in an iteration.

They send the fewest bytes: the parameters, once. In the exponential ones the distances 1, 2, 4, … take turns, and with
2^m nodes m iterations average exactly (Ying et al., Exponential Graph is Provably Efficient for Decentralized Deep
Training, arXiv 2110.13363). With other numbers of nodes, the pairs of a distance leave some nodes alone. These pause,
and the next turn begins elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from thinwire_proto.gossip.mixing import Edge
from thinwire_proto.gossip.topology import Edges, Layout, register_topology


@register_topology("ring")
def ring(layout: Layout) -> Edges:
    """Each node mixes with its neighbour on the one side, then with that on the other."""
    return matchings_of_ring(range(layout.nodes))


@register_topology("one-peer-exponential")
def one_peer_exponential(layout: Layout) -> Edges:
    """Each node mixes with one peer at distance 1, then 2, then 4, …"""
    return exponential_pairs(layout.nodes) or [[]]


@register_topology("alternating-exponential-ring")
def alternating_exponential_ring(layout: Layout) -> Edges:
    """Hosts at distance 1, 2, 4, … average in pairs, half of the pairs in one iteration and the others in the next.

    Meanwhile the other hosts average within themselves, so that only half of the hosts load the slow lines between them
    at any time (arXiv 2410.11998).
    """
    if layout.hosts == 1:
        return [list(combinations(range(layout.nodes), 2))]
    cycle: list[list[Edge]] = []
    count = 0
    for pairs in exponential_pairs(layout.hosts):
        first: list[Edge] = []
        second: list[Edge] = []
        paired = {host for pair in pairs for host in pair}
        for pair in pairs:
            together, apart = (second, first) if count % 2 == 0 else (first, second)
            together += _all_of(layout, pair)
            for host in pair:
                apart += _all_of(layout, (host,))
            count += 1
        for host in set(range(layout.hosts)) - paired:
            first += _all_of(layout, (host,))
            second += _all_of(layout, (host,))
        cycle += [first, second]
    return cycle


def matchings_of_ring(order: Sequence[int]) -> list[list[Edge]]:
    """The edges of a ring through the nodes in this order, in two matchings, or in three if their number is odd."""
    count = len(order)
    if count < 2:
        return [[]]
    edges = [(order[at], order[(at + 1) % count]) for at in range(count)]
    if count % 2:
        return [edges[0 : count - 1 : 2], edges[1 : count - 1 : 2], edges[count - 1 :]]
    return [edges[0::2], edges[1::2]]


def exponential_pairs(nodes: int) -> list[list[Edge]]:
    """Pairs at distance 1, 2, 4, …, a list for each iteration of a cycle."""
    distances = (nodes - 1).bit_length()
    turns = 1 if nodes == 1 << distances else 2
    return [
        _pairs_at(nodes, 1 << exponent, turn * nodes // 2) for turn in range(turns) for exponent in range(distances)
    ]


def _pairs_at(nodes: int, distance: int, first: int) -> list[Edge]:
    """Join each node, beginning with `first`, with the one that is `distance` further, unless either has a peer."""
    pairs: list[Edge] = []
    free = [True] * nodes
    for step in range(nodes):
        node = (first + step) % nodes
        peer = (node + distance) % nodes
        if node != peer and free[node] and free[peer]:
            free[node] = free[peer] = False
            pairs.append((node, peer))
    return pairs


def _all_of(layout: Layout, hosts: Sequence[int]) -> list[Edge]:
    """All edges between the nodes of these hosts."""
    nodes = [host * layout.per_host + at for host in hosts for at in range(layout.per_host)]
    return list(combinations(nodes, 2))
