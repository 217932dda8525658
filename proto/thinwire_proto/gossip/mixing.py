"""Mixing matrices: how each node averages its parameters with those that it hears in one iteration.

A row of W says what a node keeps and what it takes: x_i ← w_ii·x_i + Σ_j w_ij·x_j. If W is doubly stochastic, that is,
all rows and all columns add up to 1, then mixing leaves the mean of all nodes where it is. The weights of Metropolis
and Hastings, w_ij = 1 / (1 + max(d_i, d_j)) with the degrees d, give such a matrix for any undirected graph, and each
node needs to know only its neighbours' degrees (Xiao, Boyd and Kim, Distributed average consensus with
least-mean-square deviation, 2007).

On a directed graph each sender divides what it has, so columns add up to 1 and rows need not. Push-sum corrects for
that: it mixes a weight of 1 a node in the same way, and divides by it (Kempe, Dobra and Gehrke, Gossip-Based
Computation of Aggregate Information, 2003).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from thinwire_proto.errors import ConfigError

Edge = tuple[int, int]
SUM_TOLERANCE = 1e-12
"""Largest difference from 1 of a row's or a column's sum, which float64 adds up with errors."""


@dataclass(frozen=True)
class Mixing:
    """The weights of one iteration.

    own: w_ii of each node. rows: for each node, w_ij of each other node j that it hears.
    """

    own: tuple[float, ...]
    rows: tuple[Mapping[int, float], ...]

    def sources(self, node: int) -> tuple[int, ...]:
        """The nodes whose parameters this node takes in, ascending."""
        return tuple(sorted(self.rows[node]))

    def targets(self, node: int) -> tuple[int, ...]:
        """The nodes that take in this node's parameters, ascending."""
        return self._targets[node]

    @cached_property
    def _targets(self) -> tuple[tuple[int, ...], ...]:
        targets: list[list[int]] = [[] for _ in self.rows]
        for node, row in enumerate(self.rows):
            for source in row:
                targets[source].append(node)
        return tuple(map(tuple, targets))

    def matrix(self) -> NDArray[np.float64]:
        """W, float64 [nodes, nodes]."""
        matrix = np.zeros((len(self.rows), len(self.rows)))
        for i, row in enumerate(self.rows):
            for j, weight in row.items():
                matrix[i, j] = weight
            matrix[i, i] = self.own[i]
        return matrix


def metropolis(nodes: int, edges: Iterable[Edge]) -> Mixing:
    """The Metropolis-Hastings weights of an undirected graph. An edge may be given twice. Raises ConfigError for an
    edge outside the graph."""
    heard = _sources(nodes, (arc for i, j in edges for arc in ((i, j), (j, i))))
    rows = tuple({j: 1.0 / (1 + max(len(sources), len(heard[j]))) for j in sorted(sources)} for sources in heard)
    return Mixing(tuple(1.0 - sum(row.values()) for row in rows), rows)


def push(nodes: int, arcs: Iterable[Edge]) -> Mixing:
    """The weights of a directed graph with arcs (source, target): each sender divides evenly among itself and its
    targets. Raises ConfigError for an arc outside the graph."""
    heard = _sources(nodes, arcs)
    sent = [0] * nodes
    for sources in heard:
        for source in sources:
            sent[source] += 1
    rows = tuple({j: 1.0 / (1 + sent[j]) for j in sorted(sources)} for sources in heard)
    return Mixing(tuple(1.0 / (1 + count) for count in sent), rows)


def check_stochastic(mixing: Mixing, *, doubly: bool) -> None:
    """Raises ConfigError if a weight is negative, if a column does not add up to 1, or with `doubly` if a row does
    not."""
    columns = list(mixing.own)
    for node, row in enumerate(mixing.rows):
        if min(mixing.own[node], *row.values(), 0) < -SUM_TOLERANCE:
            raise ConfigError(f"mixing: node {node} has a negative weight")
        for source, weight in row.items():
            columns[source] += weight
        total = mixing.own[node] + sum(row.values())
        if doubly and abs(total - 1) > SUM_TOLERANCE * len(columns):
            raise ConfigError(f"mixing: the weights of node {node} add up to {total:.6g} and not to 1")
    for node, total in enumerate(columns):
        if abs(total - 1) > SUM_TOLERANCE * len(columns):
            raise ConfigError(
                f"mixing: the weights that all nodes give to node {node} add up to {total:.6g} and not to 1, so mixing"
                " would move the mean of all nodes"
            )


def contraction(mixings: Iterable[Mixing]) -> float:
    """The factor by which an iteration shrinks the nodes' disagreement, as the geometric mean over a cycle.

    For matrices that are doubly stochastic it is ‖∏ W_t − 11ᵀ/n‖₂^(1/cycle), a bound. For others, under push-sum, it
    is the second largest |λ| of ∏ W_t instead, which holds in the long run. 0: a cycle averages exactly. 1: some
    nodes never hear of some others.
    """
    whole: NDArray[np.float64] | None = None
    cycle = 0
    for mixing in mixings:
        matrix = mixing.matrix()
        whole = matrix if whole is None else matrix @ whole
        cycle += 1
    if whole is None or len(whole) == 1:
        return 0.0
    nodes = len(whole)
    if np.allclose(whole.sum(axis=1), 1.0, rtol=0.0, atol=SUM_TOLERANCE * nodes):
        factor = float(np.linalg.norm(whole - 1.0 / nodes, 2))
    else:
        factor = float(np.sort(np.abs(np.linalg.eigvals(whole)))[-2])
    return 0.0 if factor < SUM_TOLERANCE * nodes else factor ** (1.0 / cycle)


def late_factor(slack: int) -> float:
    """The fraction of a difference to mix if it may be `slack` iterations old; 1 for none, 1/2 for one.

    Mixing by an old difference overshoots. x(t+1) = x(t) − a·x(t−s) shrinks only if a < 2·sin(π/(4s + 2)) (Levin and
    May, A note on difference-delay equations, 1976), where a is an eigenvalue of I − W, below 2. Half of that bound is
    safe for all of them.
    """
    return math.sin(math.pi / (4 * slack + 2))


def _sources(nodes: int, arcs: Iterable[Edge]) -> list[set[int]]:
    """For each node, those that send to it."""
    heard: list[set[int]] = [set() for _ in range(nodes)]
    for source, target in arcs:
        if not (0 <= source < nodes and 0 <= target < nodes) or source == target:
            raise ConfigError(
                f"topology: the edge ({source}, {target}) does not join two of the nodes 0 to {nodes - 1}"
            )
        heard[target].add(source)
    return heard
