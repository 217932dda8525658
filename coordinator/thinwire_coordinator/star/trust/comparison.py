"""Compares the votes of a round's contributions with each other, and with those of earlier rounds.

The problem: agreement with the merged votes rewards whoever shapes them. A node agrees with itself, a group agrees with
its members, and a copy agrees with its original. So a node is compared with the rest without its own part, without
copies, without its best friends and without its worst enemies: the quarters of the others that agree with it most and
least. What colluders have in common is then not in the rest that they are compared with, and nodes that flip their
votes are not in the rest that the honest ones are compared with.

The statistic: z = Σ s·V / √ΣV², over the components that the node and the rest both have votes on. V is the weighted
sum of the rest. If the signs s were drawn at random, z would have mean 0 and variance 1, whatever V is. So no bound
has to be guessed: `sequential` compares z with that of the median node.

Honest nodes have votes in common, above all early in a run and with many samples. So a copy is not one that shares
many votes, but one that differs in far fewer votes than this node usually does from others. This also finds colluders
that agree on half of their votes and disguise them with honest ones: they outweigh all others on what they agree on, so
agreement with the rest does not show them. In `make bench-adversary`, honest nodes differ in 0.78 of the usual or more.

Memory is bounded: the table of a round has at most ENTRIES_MAX numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from thinwire_coordinator.star.trust.ballots import Ballot, Bools, Secret, digest_of
from thinwire_coordinator.star.trust.earlier_votes import COPY_DIFFERS, DIFFERING_MIN, EarlierVotes
from thinwire_coordinator.star.trust.evidence import Shown

ENTRIES_MAX = 1 << 22
"""Numbers in the table of nodes by components: 16 MiB."""
TRIMMED = 0.25
"""Share of the others that a node is not compared with: those that agree with it most, and as many that do least."""
SHARED_DIFFERS, SHARED_SPREADS = 0.6, 6.0
"""Nodes of one round share votes on purpose if they differ in at most this share of the votes in which others usually
differ, and that is this many standard deviations (Poisson) fewer than the usual."""
EMPTY_SHARE = 0.1
"""Votes of an empty contribution, as a share of the median's."""
NODES_MIN = 4
"""Contributions that can be compared. Among three, nobody can say who is wrong."""

Floats = npt.NDArray[np.float32]


class Comparer:
    """Compares the contributions of one round after the other.

    may_repeat: whether an honest node may send votes again that were merged, since not all of them left its momentum.
    """

    def __init__(self, secret: Secret, *, may_repeat: bool = False) -> None:
        self.may_repeat = may_repeat
        self._earlier = EarlierVotes(secret)

    def compare(self, ballots: Sequence[Ballot], weight: Callable[[str], float]) -> tuple[Shown, ...]:
        """Compare the votes of a round. ballots: one of each node, in the order of their arrival. weight: the trust
        in a node."""
        size = np.array([len(ballot) for ballot in ballots])
        enough = len(ballots) >= NODES_MIN
        empty = size < EMPTY_SHARE * np.median(size) if enough else np.zeros(len(ballots), bool)
        table = _Table(ballots)
        original = _originals(ballots, table, empty)
        repeats = np.zeros(len(ballots), bool)
        for place, source in enumerate(self._earlier.sources(ballots)):
            own = source == ballots[place].node
            repeats[place] = own and not self.may_repeat
            original[place] = original[place] or ("" if own else source)
        voices = np.array([weight(ballot.node) for ballot in ballots], np.float32)
        voices[empty | repeats | np.array([bool(node) for node in original], bool)] = 0
        agreement = table.agreement(voices)
        return tuple(
            Shown(
                ballot.node,
                None if empty[place] else agreement[place],
                original[place],
                bool(repeats[place]),
                bool(empty[place]),
                ballot.merged,
            )
            for place, ballot in enumerate(ballots)
        )


def _originals(ballots: Sequence[Ballot], table: _Table, empty: Bools) -> list[str]:
    """The node that each contribution copies in this round, or nothing. The first to arrive is the original."""
    differing = table.differing()
    bounds = [_copy_bound(usual) for usual in _usually_differing(differing)]
    first: dict[bytes, int] = {}  # place of the first contribution with these votes
    found = []
    for place, ballot in enumerate(ballots):
        near = np.flatnonzero(differing[place, :place] <= bounds[place])
        same = place
        if len(ballot) >= DIFFERING_MIN:
            same = first.setdefault(ballot.digest or digest_of(ballot.components, ballot.positive), place)
        original = min(same, int(near[0])) if len(near) else same
        found.append("" if empty[place] or original == place else ballots[original].node)
    return found


def _usually_differing(differing: Floats) -> list[float]:
    """In how many votes each node (row) differs from the median one of the others; 0 if there are too few."""
    nodes = len(differing)
    if nodes < NODES_MIN:
        return [0.0] * nodes
    others = differing[~np.eye(nodes, dtype=bool)].reshape(nodes, nodes - 1)
    return [float(median) for median in np.median(others, axis=1)]


def _copy_bound(usual: float) -> float:
    """The largest number of differing votes of a copy, where others usually differ in `usual`; −1 if there is none."""
    if usual < DIFFERING_MIN:
        return -1.0
    return max(COPY_DIFFERS * usual, min(SHARED_DIFFERS * usual, usual - SHARED_SPREADS * math.sqrt(usual)))


class _Table:
    """Votes as a table of nodes by components, −1, 0 or 1. Leaves out components that only one node voted on."""

    def __init__(self, ballots: Sequence[Ballot]) -> None:
        self._size = np.array([len(ballot) for ballot in ballots], np.float32)
        several = [ballot.components for ballot in ballots] if len(ballots) > 1 else []  # one has nothing in common
        every = np.concatenate([*several, np.zeros(0, np.int64)])
        columns, counts = np.unique(every, return_counts=True)
        columns = columns[counts > 1]
        self._stride = max(1, -(-len(columns) * len(ballots) // ENTRIES_MAX))
        columns = columns[:: self._stride]
        self._votes = np.zeros((len(ballots), len(columns)), np.float32)
        for row, ballot in zip(self._votes, ballots, strict=True):
            here = np.isin(ballot.components, columns, assume_unique=True)
            row[np.searchsorted(columns, ballot.components[here])] = np.where(ballot.positive[here], 1, -1)
        voted = np.abs(self._votes)
        self._signs = self._votes @ self._votes.T  # of each pair: components of equal signs, less those of different
        self._common = voted @ voted.T

    def differing(self) -> Floats:
        """How many votes of each node (row) another node (column) does not have, [nodes, nodes]."""
        equal = (self._signs + self._common) / 2 * self._stride
        found: Floats = np.maximum(self._size[:, None] - equal, 0)
        return found

    def agreement(self, weight: Floats) -> list[float | None]:
        """z of each node against the rest without its friends and enemies. weight: of each node in the rest."""
        if np.count_nonzero(weight) < NODES_MIN:
            return [None] * len(self._size)
        return [self._agreement(place, weight) for place in range(len(self._size))]

    def _agreement(self, place: int, weight: Floats) -> float | None:
        rest = weight.copy()
        rest[place] = 0
        there = np.flatnonzero(rest)
        share = self._signs[place, there] / np.sqrt(np.maximum(self._size[there], 1))
        trimmed, order = -(-len(there) // round(1 / TRIMMED)), np.argsort(share, kind="stable")
        rest[there[order[:trimmed]]] = rest[there[order[len(there) - trimmed :]]] = 0
        mine = np.flatnonzero(self._votes[place])
        total = rest @ self._votes[:, mine]
        spread = float(np.sqrt(np.square(total).sum()))
        return float(self._votes[place, mine] @ total) / spread if spread else None
