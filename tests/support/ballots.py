"""Votes of nodes that agree in part, as those of a swarm do, and of nodes that do not."""

from __future__ import annotations

import numpy as np

from thinwire_coordinator.star.trust.ballots import Ballot, digest_of

COMPONENTS = 100_000
VOTES = 600
POPULAR = 2_000
"""Components that every node votes on more often than on others in a round."""


class Votes:
    """Votes of one round after the other, drawn from a seed. agreeing: how probable it is that an honest vote has the
    sign that most have."""

    def __init__(self, seed: int, agreeing: float = 0.75) -> None:
        self._rng = np.random.default_rng(seed)
        self._agreeing = agreeing
        self.begin()

    def begin(self) -> None:
        """Begin a round."""
        self._popular = self._rng.choice(COMPONENTS, POPULAR, replace=False)
        self._sign = self._rng.random(COMPONENTS) < 0.5

    def honest(self, node: str, agreeing: float | None = None) -> Ballot:
        share = self._agreeing if agreeing is None else agreeing
        popular = self._rng.choice(self._popular, VOTES * 2 // 3, replace=False)
        components = np.union1d(popular, self._rng.choice(COMPONENTS, VOTES // 3, replace=False)).astype(np.int64)
        right = self._rng.random(len(components)) < share
        return ballot(node, components, np.where(right, self._sign[components], ~self._sign[components]))

    def flipped(self, node: str) -> Ballot:
        found = self.honest(node)
        return ballot(node, found.components, ~found.positive)

    def random(self, node: str) -> Ballot:
        components = np.sort(self._rng.choice(COMPONENTS, VOTES, replace=False)).astype(np.int64)
        return ballot(node, components, self._rng.random(VOTES) < 0.5)


def ballot(node: str, components: np.ndarray, positive: np.ndarray) -> Ballot:
    return Ballot(node, components, positive, True, digest_of(components, positive))


def sent_by(node: str, other: Ballot) -> Ballot:
    """The votes of another contribution, sent by a node."""
    return ballot(node, other.components, other.positive)


def empty(node: str) -> Ballot:
    return ballot(node, np.zeros(0, np.int64), np.zeros(0, bool))
