"""Votes, and their merge in integers: V = Σ wᵢ·sᵢ, the same in any order and through any tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_proto.batch_pool import one_torch_thread
from thinwire_proto.contract import WEIGHT_SUM_MAX
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout

CHUNK = 1 << 18
"""Components processed at a time. Bounds the extra memory; does not change the result."""
SPARSE_BELOW = 10
"""A part of the sum is sparse where fewer than one in so many values is nonzero. There numpy's own search is slow."""
Components = npt.NDArray[np.int64]
"""Flat component numbers in tile space, strictly ascending."""


@dataclass(frozen=True)
class Votes:
    """The votes of one node in one round: components, and the sign of each.

    With magnitudes there is also one code for each tile that has votes, in the tiles' order; see
    `thinwire_proto.exact.magnitudes`.
    """

    components: Components  # [n]
    positive: npt.NDArray[np.bool_]  # [n]
    codes: npt.NDArray[np.uint8] | None = None  # [tiles with votes]

    def __len__(self) -> int:
        return len(self.components)

    def add_to(self, total: npt.NDArray[np.int16], weight: int) -> None:
        """total += weight · sign, for int16 [components]. Raises IndexError for a component beyond the total."""
        signs = tensor_of(self.positive).to(torch.int16).mul_(2).sub_(1)
        add_at(total, self.components, signs.mul_(weight))

    def tiles(self, layout: TileLayout) -> npt.NDArray[np.int64]:
        """The tiles that have votes, ascending."""
        return np.flatnonzero(counts_of(self.components, layout))

    def parts(self) -> Iterator[tuple[Components, npt.NDArray[np.bool_]]]:
        """Components and signs of some votes at a time, in order."""
        for start in range(0, len(self.components), CHUNK):
            yield self.components[start : start + CHUNK], self.positive[start : start + CHUNK]


class WholeVotes(Votes):
    """The votes of a node that votes on each component of the tiles that it votes on. They take a byte of memory a
    component in place of nine; the other form of them is made when it is asked for.

    signs: int8 [components], 1 or −1, and 0 in tiles without votes; with `levels` above 0, integers within ±levels.
    codes: as in `Votes`.
    """

    signs: npt.NDArray[np.int8]
    levels: int

    def __init__(self, signs: npt.NDArray[np.int8], codes: npt.NDArray[np.uint8], levels: int = 0) -> None:
        """levels: the contract's `demo.vote_levels`."""
        object.__setattr__(self, "signs", signs)
        object.__setattr__(self, "codes", codes)
        object.__setattr__(self, "levels", levels)

    @property
    def components(self) -> Components:
        return np.flatnonzero(self.signs)

    @property
    def positive(self) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self.signs[self.signs != 0] > 0
        return found

    def __len__(self) -> int:
        return int(np.count_nonzero(self.signs))

    def add_to(self, total: npt.NDArray[np.int16], weight: int) -> None:
        for part in _ranges(len(total)):
            total[part] += self.signs[part] * np.int16(weight)

    def tiles(self, layout: TileLayout) -> npt.NDArray[np.int64]:
        split = layout.matrix_components
        if self.levels:
            kinds = self.signs[:split].reshape(-1, MATRIX_COMPONENTS), self.signs[split:].reshape(-1, VECTOR_COMPONENTS)
            return np.flatnonzero(np.concatenate([kind.any(axis=1) for kind in kinds]))
        first = self.signs[:split:MATRIX_COMPONENTS], self.signs[split::VECTOR_COMPONENTS]  # all others are like it
        return np.flatnonzero(np.concatenate(first))

    def parts(self) -> Iterator[tuple[Components, npt.NDArray[np.bool_]]]:
        for part in _ranges(len(self.signs)):
            inside = np.flatnonzero(self.signs[part])
            yield inside + part.start, self.signs[part][inside] > 0


@dataclass(frozen=True)
class Merged:
    """The merged votes of a round, without components where the votes cancel or nobody voted.

    With magnitudes, the values are scaled to ±127 in each tile, and each tile with values has a scale, in the tiles'
    order.
    """

    components: Components  # [n]
    values: npt.NDArray[np.int16]  # [n], none of them 0
    scales: npt.NDArray[np.float32] | None = None  # [tiles with values], of eight significant bits

    def __len__(self) -> int:
        return len(self.components)


@dataclass(frozen=True)
class Levels:
    """The merged votes of a round in a few levels, with magnitudes, for contracts with `demo.update_levels`.

    Unlike in `Merged`, each component has its place, so an update of nearly all components takes a byte of memory for
    each. The decode multiplies them by `factor`.
    """

    levels: int
    values: npt.NDArray[np.int8]  # [components], within ±levels
    scales: npt.NDArray[np.float32]  # [tiles], of eight significant bits; 0 in a tile without values

    def __len__(self) -> int:
        return int(np.count_nonzero(self.values))


class Selection(Protocol):
    """Chooses the merged components that an update contains; see `thinwire_proto.exact.topk`."""

    @property
    def layout(self) -> TileLayout: ...
    @property
    def update_topk(self) -> int: ...
    def positions(self, votes: npt.NDArray[np.int16], size: int, first_tile: int) -> npt.NDArray[np.int64]: ...


class Merges(Protocol):
    """Adds up the votes of a round; see `thinwire_proto.exact.aggregation.merger_of`."""

    def add(self, votes: Votes, weight: int) -> None: ...
    def merged(self) -> Merged | Levels: ...


class Merger:
    """Adds up the signs of a round's votes as they arrive; uses two bytes of memory a component.

    selection: chooses which merged components the update contains. Without it (no update_topk) it contains all.
    largest_vote: `DemoSpec.largest_vote`.
    """

    def __init__(self, components: int, selection: Selection | None = None, largest_vote: int = 1) -> None:
        self._sum = np.zeros(components, np.int16)
        self._weight = 0
        self._weight_max = WEIGHT_SUM_MAX // largest_vote
        self._selection = selection

    def add(self, votes: Votes, weight: int) -> None:
        """Add `votes` with `weight` (1 or more). Raises ValueError before a sum can overflow the int16."""
        if weight < 1 or self._weight + weight > self._weight_max:
            raise ValueError(f"weights must be 1 or more and add up to at most {self._weight_max}")
        self._weight += weight
        with one_torch_thread():
            votes.add_to(self._sum, weight)

    def values(self, part: slice) -> npt.NDArray[np.int16]:
        """The merged votes of a range of components, int16."""
        return self._sum[part]

    def merged(self) -> Merged:
        """The merged votes. Beside the sum and the result, it needs memory for one chunk only."""
        count_max = sum(int(np.count_nonzero(self.values(part))) for part in _ranges(len(self._sum)))
        if self._selection is not None:
            count_max = min(count_max, self._selection.layout.selected_max(self._selection.update_topk))
        components, values, count = np.empty(count_max, np.int64), np.empty(count_max, np.int16), 0
        for first, chunk, positions in self._chunks():
            found = slice(count, count + len(positions))
            components[found], values[found] = positions, chunk[positions]
            components[found] += first
            count = found.stop
        components.resize(count, refcheck=False)
        values.resize(count, refcheck=False)
        return Merged(components, values)

    def _chunks(self) -> Iterator[tuple[int, npt.NDArray[np.int16], npt.NDArray[np.int64]]]:
        """Yield the merged votes in chunks: (first component, merged votes, selected positions in them)."""
        if self._selection is None:
            for part in _ranges(len(self._sum)):
                values = self.values(part)
                yield part.start, values, nonzero_positions(values)
            return
        for part, tile, size in tile_ranges(self._selection.layout):
            values = self.values(part)
            yield part.start, values, self._selection.positions(values, size, tile)


def _ranges(components: int) -> Iterator[slice]:
    """Split a flat buffer in tile space into chunks."""
    for first in range(0, components, CHUNK):
        yield slice(first, first + CHUNK)


def tile_ranges(layout: TileLayout) -> Iterator[tuple[slice, int, int]]:
    """Split the tile space into chunks of whole tiles: (range, first tile, components of a tile)."""
    start = tile = 0
    for size, tiles in ((MATRIX_COMPONENTS, layout.matrix_tiles), (VECTOR_COMPONENTS, layout.vector_tiles)):
        for offset in range(0, tiles, CHUNK // size):
            last = start + min(tiles, offset + CHUNK // size) * size
            yield slice(start + offset * size, last), tile + offset, size
        start, tile = start + tiles * size, tile + tiles


def tensor_of(array: npt.NDArray[Any]) -> Tensor:
    """A tensor on the array's memory. Copies a read-only array, because torch has no read-only tensors."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def add_at(total: npt.NDArray[Any], positions: Components, values: Tensor) -> None:
    """total[positions] += values, in total's dtype. Raises IndexError for a position beyond the total.

    torch is faster than numpy here, and releases the interpreter lock meanwhile.
    """
    torch.from_numpy(total).index_add_(0, tensor_of(positions), values)


def nonzero_positions(part: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Positions of the nonzero values of a flat array, ascending.

    numpy is slow where about one value in twenty is nonzero, because it then visits each by itself. There this function
    first looks for nonzero words of eight bytes.
    """
    words = part.view(np.uint64) if part.nbytes % 8 == 0 and SPARSE_BELOW * np.count_nonzero(part) < len(part) else None
    if words is None:
        return np.flatnonzero(part != 0)
    in_word = 8 // part.itemsize
    found = np.flatnonzero(words != 0)
    inside = np.flatnonzero(words[found].view(part.dtype) != 0)
    return found[inside // in_word] * in_word + inside % in_word


def merge(contributions: Iterable[tuple[Votes, int]], components: int, selection: Selection | None = None) -> Merged:
    """Merge (votes, weight) pairs over a tile space of `components`."""
    merger = Merger(components, selection)
    for votes, weight in contributions:
        merger.add(votes, weight)
    return merger.merged()


def counts_of(components: Components, layout: TileLayout) -> npt.NDArray[np.int64]:
    """Number of the given ascending components in each tile, int64 [tiles]."""
    matrices = np.arange(layout.matrix_tiles + 1) * MATRIX_COMPONENTS
    vectors = layout.matrix_components + np.arange(1, layout.vector_tiles + 1) * VECTOR_COMPONENTS
    return np.diff(np.searchsorted(components, np.concatenate([matrices, vectors])))
