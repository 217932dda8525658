"""Topologies: who mixes with whom in each iteration. A cycle of graphs, chosen by name.

A kind is a function that returns the edges of each iteration of its cycle. `register_topology` adds one under a name,
from this project or from a script. The weights follow from the edges (`mixing`), and every topology is checked: mixing
must leave the mean where it is, and a cycle must bring all nodes together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index

import numpy as np
from numpy.typing import NDArray

from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.mixing import Edge, Mixing, check_stochastic, contraction, metropolis, push
from thinwire_proto.kinds import Kinds

AUTO = "auto"
CONTRACTION_MAX = 1 - 1e-9
"""Above it, a topology leaves some nodes apart."""
DENSE_NODES_MAX = 512
"""Largest number of nodes for which the contraction is computed when a topology is made: it takes a matrix product an
iteration."""


@dataclass(frozen=True)
class Layout:
    """The facts from which a kind makes its graph.

    nodes: how many. per_host: nodes that share a host and a fast line; host h has the nodes h·per_host and following.
    seed: for kinds that draw at random, equal on all nodes.
    """

    nodes: int
    per_host: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.per_host < 1:
            raise ConfigError(f"topology: {self.nodes} nodes, {self.per_host} on a host; both must be at least 1")
        if self.nodes % self.per_host:
            raise ConfigError(f"topology: {self.nodes} nodes cannot be divided evenly into hosts of {self.per_host}")

    @property
    def hosts(self) -> int:
        return self.nodes // self.per_host


Edges = Sequence[Iterable[Edge]]
"""The edges of each iteration of a cycle: pairs (i, j), or with a directed kind arcs (source, target)."""


@dataclass(frozen=True)
class Topology:
    """A checked topology. mixings: the weights of each iteration of its cycle. layout: also counts nodes that were
    absent when it was made."""

    name: str
    layout: Layout
    mixings: tuple[Mixing, ...]
    is_directed: bool

    @property
    def nodes(self) -> int:
        return len(self.mixings[0].rows)

    def at(self, iteration: int) -> Mixing:
        return self.mixings[iteration % len(self.mixings)]

    @cached_property
    def contraction(self) -> float:
        """See `mixing.contraction`."""
        return contraction(self.mixings)

    def peers(self, node: int) -> tuple[int, ...]:
        """All nodes with which a node ever has an edge, ascending."""
        joined: set[int] = set()
        for mixing in self.mixings:
            joined.update(mixing.sources(node), mixing.targets(node))
        return tuple(sorted(joined))


_KINDS: Kinds[Callable[[Layout], Edges]] = Kinds("topology", "thinwire_proto.gossip.topologies")
_one_way: set[str] = set()
"""Names of kinds whose edges are one-way."""


def register_topology(
    name: str, *, directed: bool = False
) -> Callable[[Callable[[Layout], Edges]], Callable[[Layout], Edges]]:
    """A decorator for a function from the layout to the edges of each iteration. Raises ConfigError if the name is
    taken."""
    if name == AUTO:
        raise ConfigError(f"topology: the name {name!r} is taken; choose another")

    def put(edges: Callable[[Layout], Edges]) -> Callable[[Layout], Edges]:
        _KINDS.register(name)(edges)
        if directed:
            _one_way.add(name)
        return edges

    return put


def topology_names(*, directed: bool | None = None) -> tuple[str, ...]:
    """The names of this project's kinds and of all that were registered, in alphabetical order. directed: only those
    whose edges are one-way, or only the others."""
    return tuple(sorted(name for name in _KINDS.names() if directed in (None, name in _one_way)))


def make_topology(name: str, layout: Layout, absent: Collection[int] = ()) -> Topology:
    """Make and check a topology; "auto" chooses by the layout. absent: nodes of the layout that are not there. Their
    edges are left out, and the others count as nodes 0, 1, … in their order. Raises ConfigError if the name is unknown,
    or if the topology would not bring all nodes to one mean."""
    chosen = _automatic(layout) if name == AUTO else name
    edges_of = _KINDS.find(chosen)
    if edges_of is None:
        raise ConfigError(f"topology: there is no {chosen!r}; there are {', '.join((AUTO, *topology_names()))}")
    is_directed = chosen in _one_way
    weigh = push if is_directed else metropolis
    nodes = layout.nodes - len(set(absent))
    mixings = tuple(weigh(nodes, edges) for edges in _present(_cycle(chosen, edges_of(layout)), layout, absent))
    if not mixings:
        raise ConfigError(f"topology {chosen!r}: its cycle has no iteration")
    for mixing in mixings:
        check_stochastic(mixing, doubly=not is_directed)
    topology = Topology(chosen, layout, mixings, is_directed)
    if not _is_connected(topology):
        raise ConfigError(f"topology {chosen!r}: with {_counted(layout, nodes)}, some never hear of some others")
    if nodes <= DENSE_NODES_MAX and topology.contraction > CONTRACTION_MAX:
        raise ConfigError(
            f"topology {chosen!r}: with {_counted(layout, nodes)}, a cycle does not bring the nodes together"
        )
    return topology


def _cycle(name: str, edges: object) -> Edges:
    """Check that a kind's function has returned a cycle of edges."""
    try:
        return [[(index(i), index(j)) for i, j in iteration] for iteration in edges]  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"topology {name!r}: its function must return a list of the edges of each iteration, each edge a pair of "
            f"node numbers: {error}"
        ) from error


def _present(cycle: Edges, layout: Layout, absent: Collection[int]) -> Edges:
    """The edges between nodes that are there, by their new numbers."""
    if not absent:
        return cycle
    there = (node for node in range(layout.nodes) if node not in absent)
    number = {node: count for count, node in enumerate(there)}
    return [[(number[i], number[j]) for i, j in edges if i in number and j in number] for edges in cycle]


def _counted(layout: Layout, nodes: int) -> str:
    return f"{nodes} nodes" if nodes == layout.nodes else f"{nodes} of {layout.nodes} nodes"


def _automatic(layout: Layout) -> str:
    if layout.per_host > 1 and layout.hosts > 1:
        return "alternating-exponential-ring"
    return "complete" if layout.hosts == 1 or layout.nodes <= 2 else "one-peer-exponential"


def _is_connected(topology: Topology) -> bool:
    """Whether each node hears of each other one in the end: node 0 reaches all along the edges, and all reach it."""
    onward: list[set[int]] = [set() for _ in range(topology.nodes)]
    back: list[set[int]] = [set() for _ in range(topology.nodes)]
    for mixing in topology.mixings:
        for node, row in enumerate(mixing.rows):
            back[node].update(row)
            for source in row:
                onward[source].add(node)
    return all(len(_reached(neighbours)) == topology.nodes for neighbours in (onward, back))


def _reached(neighbours: Sequence[set[int]]) -> set[int]:
    """The nodes that node 0 reaches, itself included."""
    reached, waiting = {0}, [0]
    while waiting:
        for node in neighbours[waiting.pop()] - reached:
            reached.add(node)
            waiting.append(node)
    return reached


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
