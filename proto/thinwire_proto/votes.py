"""Votes, and their merge in integers: V = Σ wᵢ·sᵢ, the same in any order and through any tree (design section 3.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from thinwire_proto.contract import WEIGHT_SUM_MAX
from thinwire_proto.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS

if TYPE_CHECKING:
    from thinwire_proto.strongest import Strongest

CHUNK = 1 << 18
"""Merged components looked at a time: bounds the extra memory, not the result."""
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
    """Adds up the signs of a round's votes as they come; memory is two bytes a component. `keep`: which of the merged
    components the update keeps; all, unless the contract has k_down."""

    def __init__(self, components: int, keep: Strongest | None = None) -> None:
        self._sum = np.zeros(components, np.int16)
        self._weight = 0
        self._keep = keep

    def add(self, votes: Votes, weight: int) -> None:
        """Count `votes` `weight` times (1 or more). Raises ValueError before Σw can leave the int16."""
        if weight < 1 or self._weight + weight > WEIGHT_SUM_MAX:
            raise ValueError(f"weights must be 1 or more and add up to at most {WEIGHT_SUM_MAX}")
        self._weight += weight
        np.add.at(self._sum, votes.components, np.where(votes.positive, np.int16(weight), np.int16(-weight)))

    def merged(self) -> Merged:
        found = [np.zeros(0, np.int64)]
        for first, chunk in self._chunks():
            found.append(np.flatnonzero(chunk) + first)
        components = np.concatenate(found)
        return Merged(components, self._sum[components])

    def _chunks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """What is not 0 where a component is kept, a chunk at a time: (first component, flat)."""
        if self._keep is None:
            for first in range(0, len(self._sum), CHUNK):
                yield first, self._sum[first : first + CHUNK]
            return
        layout, start, tile = self._keep.layout, 0, 0
        for size, tiles in ((MATRIX_COMPONENTS, layout.matrix_tiles), (VECTOR_COMPONENTS, layout.vector_tiles)):
            kind = self._sum[start : start + tiles * size].reshape(tiles, size)
            for place in range(0, tiles, CHUNK // size):
                chunk = kind[place : place + CHUNK // size]
                yield start + place * size, self._keep.of(chunk, tile + place).reshape(-1)
            start, tile = start + tiles * size, tile + tiles


def merge(contributions: Iterable[tuple[Votes, int]], components: int, keep: Strongest | None = None) -> Merged:
    """Merge (votes, weight) pairs over a tile space of `components`."""
    merger = Merger(components, keep)
    for votes, weight in contributions:
        merger.add(votes, weight)
    return merger.merged()
