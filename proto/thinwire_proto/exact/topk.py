"""update_topk: the update contains only the strongest merged votes of each tile, so its size does not grow with the
swarm.

The problem: many components of a tile have the same |V|, a small integer, and the update can hold only some of them.
The lowest positions are the low frequencies, so choosing those first would starve the others for the whole run. The
sketch: ties are ordered by a permutation of positions that is drawn for each step and tile. The draw is a hash, so
the same votes give the same update. Only the coordinator draws; replay and nodes read the selection from the update.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from thinwire_proto.contract import WEIGHT_SUM_MAX, DemoSpec
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.mix64 import GOLDEN, MASK, mix64_array
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, MATRIX_SHIFT, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.exact.votes import Components, Levels, Merged, counts_of, nonzero_positions

_WEAKNESS_BITS = 15
_POSITIONS = MATRIX_COMPONENTS - 1
Permutation = npt.NDArray[np.int64]
"""The positions 0 … 4,095 in some order."""


@dataclass(frozen=True)
class TopkSelection:
    """Selects the merged components of one update: in each tile the `update_topk` with the largest |V|.

    numbers: int64 [tiles], by which the draw knows the tiles of a layout that holds a part of another one; None: their
    own. So the parts of a parameter that ranks share choose as the whole one.
    """

    layout: TileLayout
    update_topk: int
    step: int
    numbers: npt.NDArray[np.int64] | None = None

    def positions(self, votes: npt.NDArray[np.int16], size: int, first_tile: int) -> npt.NDArray[np.int64]:
        """Positions of the selected components in merged votes V, ascending.

        votes: int16 [n · size], whole tiles of `size` components each, numbered from `first_tile`.
        """
        positions = nonzero_positions(votes)
        tile = positions >> (size.bit_length() - 1)  # 4,096 or 64
        counts = np.bincount(tile, minlength=len(votes) // size)
        over = counts > self.update_topk
        if not over.any():
            return positions
        overfull = over[tile]
        rest, positions, tile = positions[~overfull], positions[overfull], tile[overfull]
        # sort key: tile, weakness (15 bits), and a drawn number that is unique in the tile (12 bits)
        ranks, offsets = self.drawn(self._numbers(tile + first_tile))
        number = (ranks[positions & (size - 1)] + offsets) & _POSITIONS
        weakness = WEIGHT_SUM_MAX - np.abs(votes[positions].astype(np.int64))
        order = (tile << _WEAKNESS_BITS | weakness) << MATRIX_SHIFT | number
        order.sort()
        starts = np.cumsum(np.where(over, counts, 0)) - counts
        order = order[np.arange(len(order)) - starts[tile] < self.update_topk]
        tile, number = order >> (_WEAKNESS_BITS + MATRIX_SHIFT), order & _POSITIONS
        offsets = _tile_offsets(self._numbers(tile + first_tile), self.step)
        position = _permutation(self.step)[(number - offsets) & _POSITIONS]
        selected = np.concatenate([rest, tile * size + position])
        selected.sort()
        return selected

    def drawn(self, tiles: npt.NDArray[np.int64]) -> tuple[Permutation, npt.NDArray[np.int64]]:
        """The draw that orders ties, as the rank of each position and an offset for each of `tiles`.

        A position comes before the others of its tile if (rank + offset) mod 4,096 is less.
        """
        return _ranks(self.step), _tile_offsets(tiles, self.step)

    def _numbers(self, tiles: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return tiles if self.numbers is None else self.numbers[tiles]


def topk_selection(demo: DemoSpec, layout: TileLayout, step: int) -> TopkSelection | None:
    """The selection for the update of a step; None if the contract has no update_topk, so the update contains
    everything."""
    return TopkSelection(layout, demo.update_topk, step) if demo.update_topk else None


def update_bounds(layout: TileLayout, update_topk: int) -> npt.NDArray[np.int64]:
    """Upper bound on the components of an update in each tile, int64 [tiles]. update_topk = 0 means no limit."""
    bounds = np.full(layout.tiles, min(update_topk or MATRIX_COMPONENTS, MATRIX_COMPONENTS), np.int64)
    bounds[layout.matrix_tiles :] = min(update_topk or VECTOR_COMPONENTS, VECTOR_COMPONENTS)
    return bounds


def check_update_topk(merged: Merged | Levels, layout: TileLayout, update_topk: int) -> None:
    """Raise PayloadError if a tile of the update has more components than update_topk allows."""
    if not update_topk:
        return
    if not isinstance(merged, Merged):
        raise PayloadError("with update_topk an update must contain votes; this one contains something else")
    counts, bounds = counts_of(merged.components, layout), update_bounds(layout, update_topk)
    if (counts > bounds).any():
        tile = int(np.argmax(counts > bounds))
        raise PayloadError(
            f"tile {tile} of the update has {counts[tile]} components; update_topk allows {bounds[tile]}"
        )


def dropped_by_update(
    components: Components, merged: Merged, layout: TileLayout, update_topk: int
) -> npt.NDArray[np.bool_]:
    """Mask [n] of the components of a counted contribution that the update dropped.

    In a tile with fewer than update_topk components, a missing component has cancelled out, so it was counted. In a
    full tile, a cancelled component cannot be told apart from one that was too weak, so it passes for dropped. That is
    safe: the node puts it back into its momentum, and nothing is lost.
    """
    if not update_topk or not len(components):
        return np.zeros(len(components), bool)
    full = counts_of(merged.components, layout) >= update_bounds(layout, update_topk)
    missing = np.isin(components, merged.components, assume_unique=True, invert=True)
    found: npt.NDArray[np.bool_] = missing & full[layout.tile_of(components)]
    return found


@lru_cache(maxsize=2)
def _permutation(step: int) -> Permutation:
    """The positions of a tile in an order drawn for this step."""
    drawn = _mixed(np.arange(MATRIX_COMPONENTS, dtype=np.uint64) + np.uint64((step << MATRIX_SHIFT) & MASK))
    return np.argsort(drawn, kind="stable")


@lru_cache(maxsize=2)
def _ranks(step: int) -> Permutation:
    """The rank of each position in that order."""
    return np.argsort(_permutation(step))


def _tile_offsets(tiles: npt.NDArray[np.int64], step: int) -> npt.NDArray[np.int64]:
    """A pseudorandom offset below 4,096 for each tile. Added to the step's permutation it gives another permutation."""
    drawn = _mixed(tiles.astype(np.uint64) ^ np.uint64(~step * GOLDEN & MASK)) >> np.uint64(64 - MATRIX_SHIFT)
    numbers: npt.NDArray[np.int64] = drawn.astype(np.int64)
    return numbers


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Neighbours far apart before they are mixed."""
    return mix64_array(x * np.uint64(GOLDEN))
