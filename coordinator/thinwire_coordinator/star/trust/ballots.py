"""The votes of a contribution as they are compared, and the secret that chooses which of them are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from thinwire_proto.exact.votes import Votes

Components = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Ballot:
    """The votes of one contribution that are compared: all of them, or those that `Secret.sampled` chooses.

    components: ascending, int64 [n]. positive: bool [n]. merged: whether the contribution is counted. digest: of all
    its votes; empty if it is not known.
    """

    node: str
    components: Components
    positive: Bools
    merged: bool = True
    digest: bytes = b""

    def __len__(self) -> int:
        return len(self.components)


def digest_of(components: Components, positive: Bools) -> bytes:
    """The hash of all votes of a contribution: the same for the same votes, however they were encoded."""
    found = hashlib.blake2b(np.ascontiguousarray(components).data, digest_size=16)
    found.update(np.packbits(positive).tobytes())
    return found.digest()


class Secret:
    """Draws a number for each integer, which nobody can predict who does not know the secret. secret: 64 bits."""

    def __init__(self, secret: int) -> None:
        self._secret = np.uint64(secret)

    def drawn(self, numbers: Components) -> Numbers:
        """SplitMix64 of each number and the secret."""
        x: Numbers = (numbers.astype(np.uint64) + self._secret) * _GOLDEN
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        return x

    def sampled(self, votes: Votes, share: float) -> tuple[Components, Bools]:
        """About this share of a contribution's votes: those on the same components for all nodes and rounds."""
        if share >= 1:
            return votes.components, votes.positive
        below, found = np.uint64(int(share * 2**64)), []
        for components, positive in votes.parts():
            chosen = self.drawn(components) < below
            found.append((components[chosen], positive[chosen]))
        parts = zip(*found, strict=True) if found else ((votes.components,), (votes.positive,))
        components, positive = (np.concatenate(part) for part in parts)
        return components, positive

    def thinned(self, ballot: Ballot, share: float) -> Ballot:
        """The ballot with the votes that `sampled` chooses at a smaller share than the ballot's own, or an equal one.

        Of a ballot that was sampled, this chooses what it would have chosen of all votes."""
        components, positive = self.sampled(Votes(ballot.components, ballot.positive), share)
        if len(components) == len(ballot):
            return ballot
        return replace(ballot, components=components, positive=positive, digest=digest_of(components, positive))
