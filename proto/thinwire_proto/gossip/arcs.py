"""The one-way edges of a topology, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from thinwire_proto.gossip.mixing import Mixing
from thinwire_proto.gossip.topology import Topology

Ints = NDArray[np.intp]
Part = tuple[Ints, Ints]
"""Arcs of which no two have the same sender or the same receiver: all senders, and all receivers."""


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

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The arcs in parts."""
        parts: list[list[tuple[int, int]]] = []
        for sender, receiver in zip(self.senders.tolist(), self.receivers.tolist(), strict=True):
            for part in parts:
                if all(sender != other and receiver != another for other, another in part):
                    part.append((sender, receiver))
                    break
            else:
                parts.append([(sender, receiver)])
        return tuple((ends[0], ends[1]) for ends in (np.asarray(part, np.intp).T for part in parts))


def cycle_of(topology: Topology) -> tuple[Arcs, ...]:
    return tuple(map(Arcs.of, topology.mixings))
