"""How far ahead of a node its sources can be, while they wait for each other as `iteration.py` says."""

from __future__ import annotations

import numpy as np

from thinwire_proto.gossip.arcs import Arcs, cycle_of
from thinwire_proto.gossip.topology import Topology


def lead_of(topology: Topology, slack: int) -> int:
    """The largest number of messages that a node can hold of a source, before it begins the iterations itself, if no
    node's patience ends.

    Over an edge with both ends, it is slack + 1: a source waits for this node. Over one-way edges, a source waits for
    its own sources, these for theirs, and somebody at last for this node. So the whole graph bounds the lead.
    """
    if not topology.is_directed or topology.nodes == 1:
        return slack + 1
    cycle = cycle_of(topology)
    return max(_lead_from(cycle, first, topology.nodes, slack) for first in range(len(cycle)))


def _lead_from(cycle: tuple[Arcs, ...], first: int, nodes: int, slack: int) -> int:
    """The largest lead over a node that stops after beginning an iteration `first` of the cycle, for each node.

    newest[stopped, node]: the newest iteration that a node can begin, counted from that one. A node that needs the
    message of iteration i from one that cannot begin i begins i + slack at most.
    """
    never = np.iinfo(np.int64).max
    newest = np.full((nodes, nodes), never)
    np.fill_diagonal(newest, 0)
    iteration = 0
    while (newest == never).any() or iteration <= newest.max():
        iteration += 1
        for senders, receivers in cycle[(first + iteration) % len(cycle)].parts:
            blocked = np.where(newest[:, senders] < iteration, iteration + slack, never)
            newest[:, receivers] = np.minimum(newest[:, receivers], blocked)
    return int(newest.max())
