"""Votes, and their merge in integers: V = Σ wᵢ·sᵢ, the same in any order and through any tree (design section 3.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_proto.contract import WEIGHT_SUM_MAX
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout

CHUNK = 1 << 18
"""Components looked at a time: bounds the extra memory, not the result."""
DENSE = 10
"""A part of the sum is dense where one in so many is not 0, or more of them; then numpy finds them fast by itself."""
Kind = TypeVar("Kind", bound=np.generic)
Components = npt.NDArray[np.int64]
"""Flat component numbers in tile space, strictly ascending."""


@dataclass(frozen=True)
class Votes:
    """What one node says in one round: which components, and the sign of each. With magnitudes, also one code for each
    tile that has votes, in the tiles' order; see `thinwire_proto.exact.magnitudes`."""

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


@dataclass(frozen=True)
class Signs:
    """What merged votes come to where parameters step by signs alone (`thinwire_proto.wire.sign_form`): which tiles
    step,
    and of each parameter of theirs, in the manifest's order and row-major, whether sign(X) is +."""

    stepped: npt.NDArray[np.bool_]  # [tiles]
    positive: npt.NDArray[np.bool_]  # [parameters in tiles that step]


class Selection(Protocol):
    """Chooses which merged components an update keeps; see `thinwire_proto.exact.topk`."""

    @property
    def layout(self) -> TileLayout: ...
    @property
    def update_topk(self) -> int: ...
    def of(self, votes: npt.NDArray[np.int16], size: int, first_tile: int) -> npt.NDArray[np.int64]: ...


class Merges(Protocol):
    """What adds up the votes of a round; see `thinwire_proto.exact.magnitudes.merger_of`."""

    def add(self, votes: Votes, weight: int) -> None: ...
    def merged(self) -> Merged: ...


class Merger:
    """Adds up the signs of a round's votes as they come; memory is two bytes a component. `keep`: which of the merged
    components the update keeps; all, unless the contract has update_topk."""

    def __init__(self, components: int, keep: Selection | None = None) -> None:
        self._sum = np.zeros(components, np.int16)
        self._weight = 0
        self._keep = keep

    def add(self, votes: Votes, weight: int) -> None:
        """Count `votes` `weight` times (1 or more). Raises ValueError before Σw can leave the int16."""
        if weight < 1 or self._weight + weight > WEIGHT_SUM_MAX:
            raise ValueError(f"weights must be 1 or more and add up to at most {WEIGHT_SUM_MAX}")
        self._weight += weight
        signs = tensor_of(votes.positive).to(torch.int16).mul_(2).sub_(1)
        add_at(self._sum, votes.components, signs.mul_(weight))

    def merged(self) -> Merged:
        """Looks at a chunk at a time: beside the sum there is never more than that, and what comes out."""
        count_max = int(np.count_nonzero(self._sum))
        if self._keep is not None:
            count_max = min(count_max, self._keep.layout.kept_max(self._keep.update_topk))
        components, values, count = np.empty(count_max, np.int64), np.empty(count_max, np.int16), 0
        for first, chunk, places in self._chunks():
            found = slice(count, count + len(places))
            components[found], values[found] = places, chunk[places]
            components[found] += first
            count = found.stop
        components.resize(count, refcheck=False)
        values.resize(count, refcheck=False)
        return Merged(components, values)

    def _chunks(self) -> Iterator[tuple[int, npt.NDArray[np.int16], npt.NDArray[np.int64]]]:
        """The sum, cut up: (first component, part of the sum, places in it that are kept)."""
        if self._keep is None:
            for first in range(0, len(self._sum), CHUNK):
                part = self._sum[first : first + CHUNK]
                yield first, part, places_of(part)
            return
        for first, tile, size, part in tiles_in_chunks(self._sum, self._keep.layout):
            yield first, part, self._keep.of(part, size, tile)


def tiles_in_chunks(flat: npt.NDArray[Kind], layout: TileLayout) -> Iterator[tuple[int, int, int, npt.NDArray[Kind]]]:
    """A flat buffer in tile space, cut between tiles: (first component, first tile, components of a tile, part)."""
    start = tile = 0
    for size, tiles in ((MATRIX_COMPONENTS, layout.matrix_tiles), (VECTOR_COMPONENTS, layout.vector_tiles)):
        for place in range(0, tiles, CHUNK // size):
            first, last = start + place * size, start + min(tiles, place + CHUNK // size) * size
            yield first, tile + place, size, flat[first:last]
        start, tile = start + tiles * size, tile + tiles


def tensor_of(array: npt.NDArray[Any]) -> Tensor:
    """On the same memory, unless that is read-only, which torch does not have."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def add_at(total: npt.NDArray[Any], places: Components, values: Tensor) -> None:
    """total[places] += values, of total's type. In torch, which is faster than numpy here, and lets other threads run
    meanwhile. Raises IndexError where a place is beyond the total."""
    torch.from_numpy(total).index_add_(0, tensor_of(places), values)


def places_of(part: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Where a flat array is not 0, ascending. numpy is slow where about one in twenty is: it then looks for each by
    itself. So there, words of eight bytes are looked at first."""
    words = part.view(np.uint64) if part.nbytes % 8 == 0 and DENSE * np.count_nonzero(part) < len(part) else None
    if words is None:
        return np.flatnonzero(part != 0)
    in_word = 8 // part.itemsize
    found = np.flatnonzero(words != 0)
    inside = np.flatnonzero(words[found].view(part.dtype) != 0)
    return found[inside // in_word] * in_word + inside % in_word


def merge(contributions: Iterable[tuple[Votes, int]], components: int, keep: Selection | None = None) -> Merged:
    """Merge (votes, weight) pairs over a tile space of `components`."""
    merger = Merger(components, keep)
    for votes, weight in contributions:
        merger.add(votes, weight)
    return merger.merged()


def counts_of(components: Components, layout: TileLayout) -> npt.NDArray[np.int64]:
    """How many of ascending components are in each tile, int64 [tiles]."""
    matrices = np.arange(layout.matrix_tiles + 1) * MATRIX_COMPONENTS
    vectors = layout.matrix_components + np.arange(1, layout.vector_tiles + 1) * VECTOR_COMPONENTS
    return np.diff(np.searchsorted(components, np.concatenate([matrices, vectors])))
