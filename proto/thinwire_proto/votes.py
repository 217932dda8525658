"""Votes, and their merge in integers: V = Σ wᵢ·sᵢ, the same in any order and through any tree (design section 3.4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from thinwire_proto.contract import WEIGHT_SUM_MAX

Components = npt.NDArray[np.int64]
"""Flat component numbers in tile space, strictly ascending."""


@dataclass(frozen=True)
class Votes:
    """What one node says in one round: which components, and the sign of each. With magnitudes, also one code for each
    tile that has votes, in the tiles' order; see `thinwire_proto.magnitudes`."""

    components: Components  # [n]
    positive: npt.NDArray[np.bool_]  # [n]
    codes: npt.NDArray[np.uint8] | None = None  # [tiles with votes]

    def __len__(self) -> int:
        return len(self.components)


@dataclass(frozen=True)
class Merged:
    """The merged votes of a round, without the components where they cancel or nobody voted. With magnitudes, the
    values are scaled to ±127 in each tile, and each tile that has values has a scale, in the tiles' order."""

    components: Components  # [n]
    values: npt.NDArray[np.int16]  # [n], none of them 0
    scales: npt.NDArray[np.float32] | None = None  # [tiles with values], of eight significant bits

    def __len__(self) -> int:
        return len(self.components)


class Merges(Protocol):
    """What adds up the votes of a round; see `thinwire_proto.magnitudes.merger_of`."""

    def add(self, votes: Votes, weight: int) -> None: ...
    def merged(self) -> Merged: ...


class Merger:
    """Adds up the signs of a round's votes as they come; memory is two bytes a component."""

    def __init__(self, components: int) -> None:
        self._sum = np.zeros(components, np.int16)
        self._weight = 0

    def add(self, votes: Votes, weight: int) -> None:
        """Count `votes` `weight` times (1 or more). Raises ValueError before Σw can leave the int16."""
        if weight < 1 or self._weight + weight > WEIGHT_SUM_MAX:
            raise ValueError(f"weights must be 1 or more and add up to at most {WEIGHT_SUM_MAX}")
        self._weight += weight
        np.add.at(self._sum, votes.components, np.where(votes.positive, np.int16(weight), np.int16(-weight)))

    def merged(self) -> Merged:
        components = np.flatnonzero(self._sum)
        return Merged(components, self._sum[components])


def merge(contributions: Iterable[tuple[Votes, int]], components: int) -> Merged:
    """Merge (votes, weight) pairs over a tile space of `components`."""
    merger = Merger(components)
    for votes, weight in contributions:
        merger.add(votes, weight)
    return merger.merged()
