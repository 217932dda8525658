"""update_topk: of the merged votes of each tile, the update keeps the strongest, so that it does not grow with the
swarm.

The problem: many components of a tile have the same |V|, a small integer, and the update has room for some of them. The
lowest positions are the low frequencies, so to take those first would starve the others for the whole run. The sketch:
equals are ordered by a permutation of positions that is drawn anew for each step and tile. The draw is a hash, so the
same votes give the same update. Nobody else draws: replay and nodes read in the update what was kept.
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
from thinwire_proto.exact.votes import Components, Merged, Signs, counts_of, places_of

_WEAKNESS_BITS = 15
_PLACE = MATRIX_COMPONENTS - 1
Permutation = npt.NDArray[np.int64]
"""The places 0 … 4,095 in some order."""


@dataclass(frozen=True)
class Strongest:
    """Which merged components the update of a step keeps: at most `update_topk` a tile, those of largest |V|."""

    layout: TileLayout
    update_topk: int
    step: int

    def of(self, votes: npt.NDArray[np.int16], size: int, first_tile: int) -> npt.NDArray[np.int64]:
        """Where the kept ones of merged votes V are, ascending. votes: [n · size] of whole tiles of `size` components,
        whose numbers count from `first_tile`."""
        places = places_of(votes)
        tile = places >> (size.bit_length() - 1)  # 4,096 or 64
        counts = np.bincount(tile, minlength=len(votes) // size)
        over = counts > self.update_topk
        if not over.any():
            return places
        crowded = over[tile]
        rest, places, tile = places[~crowded], places[crowded], tile[crowded]
        # the strongest first, then by a number that no other component of the tile has: tile, 15 bits, 12 bits
        number = (_numbers(self.step)[places & (size - 1)] + _drawn(tile + first_tile, self.step)) & _PLACE
        weakness = WEIGHT_SUM_MAX - np.abs(votes[places].astype(np.int64))
        order = (tile << _WEAKNESS_BITS | weakness) << MATRIX_SHIFT | number
        order.sort()
        starts = np.cumsum(np.where(over, counts, 0)) - counts
        order = order[np.arange(len(order)) - starts[tile] < self.update_topk]
        tile, number = order >> (_WEAKNESS_BITS + MATRIX_SHIFT), order & _PLACE
        place = _places(self.step)[(number - _drawn(tile + first_tile, self.step)) & _PLACE]
        kept = np.concatenate([rest, tile * size + place])
        kept.sort()
        return kept


def strongest_of(demo: DemoSpec, layout: TileLayout, step: int) -> Strongest | None:
    """What the contract lets the update of a step keep; None: all."""
    return Strongest(layout, demo.update_topk, step) if demo.update_topk else None


def kept_bounds(layout: TileLayout, update_topk: int) -> npt.NDArray[np.int64]:
    """How many components of each tile an update can hold; update_topk 0: all that there are."""
    bounds = np.full(layout.tiles, min(update_topk or MATRIX_COMPONENTS, MATRIX_COMPONENTS), np.int64)
    bounds[layout.matrix_tiles :] = min(update_topk or VECTOR_COMPONENTS, VECTOR_COMPONENTS)
    return bounds


def check_kept(merged: Merged | Signs, layout: TileLayout, update_topk: int) -> None:
    """Raises PayloadError if a tile has more components than the contract lets an update keep."""
    if not update_topk:
        return
    if isinstance(merged, Signs):
        raise PayloadError("with update_topk an update is votes, which say what was kept; this one is signs")
    kept, bounds = counts_of(merged.components, layout), kept_bounds(layout, update_topk)
    if (kept > bounds).any():
        tile = int(np.argmax(kept > bounds))
        raise PayloadError(f"tile {tile} of the update has {kept[tile]} components; update_topk allows {bounds[tile]}")


def left_out(components: Components, merged: Merged, layout: TileLayout, update_topk: int) -> npt.NDArray[np.bool_]:
    """Which components [n] of a counted contribution the update has left out.

    A component that is missing in a tile with fewer than update_topk has cancelled: it was counted. In a full tile that
    cannot be told apart from one that was too weak, and it passes for left out: what is put back is not lost.
    """
    if not update_topk or not len(components):
        return np.zeros(len(components), bool)
    full = counts_of(merged.components, layout) >= kept_bounds(layout, update_topk)
    missing = np.isin(components, merged.components, assume_unique=True, invert=True)
    found: npt.NDArray[np.bool_] = missing & full[layout.tile_of(components)]
    return found


@lru_cache(maxsize=2)
def _places(step: int) -> Permutation:
    """The places of a tile in an order that is drawn for this step."""
    drawn = _mixed(np.arange(MATRIX_COMPONENTS, dtype=np.uint64) + np.uint64((step << MATRIX_SHIFT) & MASK))
    return np.argsort(drawn, kind="stable")


@lru_cache(maxsize=2)
def _numbers(step: int) -> Permutation:
    """Where each place stands in that order."""
    return np.argsort(_places(step))


def _drawn(tiles: npt.NDArray[np.int64], step: int) -> npt.NDArray[np.int64]:
    """For each tile a number below 4,096, which added to the step's permutation makes another."""
    drawn = _mixed(tiles.astype(np.uint64) ^ np.uint64(~step * GOLDEN & MASK)) >> np.uint64(64 - MATRIX_SHIFT)
    numbers: npt.NDArray[np.int64] = drawn.astype(np.int64)
    return numbers


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Neighbours far apart before they are mixed."""
    return mix64_array(x * np.uint64(GOLDEN))
