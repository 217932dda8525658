"""The one-way edges of a topology, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thinwire_proto.gossip.mixing import Mixing
from thinwire_proto.gossip.topology import Topology

Ints = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Arcs:
    """The one-way edges of an iteration. senders, receivers: [arcs]. heard: for each node the numbers of the arcs into
    it [nodes, most], filled up with the number of arcs, which stands for none."""

    senders: Ints
    receivers: Ints
    heard: Ints

    @classmethod
    def of(cls, mixing: Mixing) -> Arcs:
        rows = [list(row) for row in mixing.rows]
        senders = np.asarray([source for row in rows for source in row], np.intp)
        receivers = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        heard = np.full((len(rows), max(1, *map(len, rows))), len(senders), np.intp)
        first = 0
        for node, row in enumerate(rows):
            heard[node, : len(row)] = range(first, first + len(row))
            first += len(row)
        return cls(senders, receivers, heard)


def cycle_of(topology: Topology) -> tuple[Arcs, ...]:
    return tuple(map(Arcs.of, topology.mixings))


def edges_at_once(cycle: tuple[Arcs, ...]) -> int:
    """The most messages that a node sends in one iteration."""
    return max((int(np.bincount(arcs.senders).max(initial=0)) for arcs in cycle), default=0)
