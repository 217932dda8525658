"""Magnitudes of votes: one byte a tile on the wire, merged in integers.

The problem: the part that a node extracts from its momentum has a size, and all replicas must step by the same size to
the bit. A sum of floats from many nodes would depend on their order.

The sketch: a node sends the size of its votes in a tile as a code, and each code stands for an integer in a published
table. So V = Σ w·s·a is a sum of integers, the same in any order and through any tree. The coordinator computes V' (V
scaled to ±127 in each tile) and one scale a tile, once, and sends both in the update. No other machine's division or
rounding enters a replica. The node subtracts from its momentum what the code stands for, not the true magnitude, so the
quantization error stays in the momentum.

With such a sum, one node can shout: a vote of the largest code weighs 2³² times one of the smallest. So unless the
contract says `sizes = "own"`, V = Σ w·s, by the aggregation rule, times one size a tile: the median of those that nodes
sent for it. If nodes with less than half of the round's weight have votes in a tile, their median may be that of one
node; there the size is at most the largest median of the other tiles. The answers that fail: a mean of the sizes, which
one large size moves; a limit on each size, which needs the votes of the round until its end; a limit from the last
update, which a patient node raises round by round.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_proto.batch_pool import one_torch_thread
from thinwire_proto.contract import TILE_EDGE, WEIGHT_SUM_MAX, RunSpec, VoteSpec
from thinwire_proto.exact.decode import SHIFT, VOTE_MAX, level_factor
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.topk import TopkSelection, topk_selection
from thinwire_proto.exact.transform import BASIS_MAX
from thinwire_proto.exact.two_sided import TwoSidedMerger
from thinwire_proto.exact.votes import (
    Components,
    Levels,
    Merged,
    Merger,
    Merges,
    Votes,
    add_at,
    nonzero_positions,
    tile_ranges,
)

OCTAVE = (128, 140, 152, 166, 181, 197, 215, 235)
"""round(128·2^(i/8)): the values of the codes of the lowest octave. With eight codes an octave the error is at most 5%.
"""
TABLE: npt.NDArray[np.int64] = np.array([OCTAVE[code % 8] << (code // 8) for code in range(256)], np.int64)
"""The value of each code, in `UNIT`s: 32 octaves, each exactly twice the one before."""
UNIT = 2.0**-35
"""In units of the orthonormal transform, hence of a parameter. The votes of a tile lie between 3.7e-9 and 14.7."""
TILES_AT_ONCE = 1 << 12
"""Tiles whose median is computed at a time; bounds the extra memory to 16 MiB."""
SCALE_MIN, SCALE_MAX = 2.0**-100, 1.0
"""Bounds of a tile's scale S. X is an integer, so a change S·X is 0 or at least 2⁻¹⁰⁰. It is never subnormal, where
machines differ."""

# V and the numerator of V' fit an int64, whatever weights the contract allows and nodes send
assert (2 * VOTE_MAX + 1) * WEIGHT_SUM_MAX * int(TABLE[-1]) < 1 << 63


def coded(magnitudes: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize float magnitudes: the nearest codes, uint8, and their exact values, float32; both in the input's shape.

    A magnitude too small for any code gets the value 0 and must not be sent. A magnitude too large gets the largest
    code.
    """
    codes = (8 * torch.log2(magnitudes.clamp(min=1e-30) / (OCTAVE[0] * UNIT))).round()
    nearest = codes.clamp(0, len(TABLE) - 1).to(torch.int64)
    values = (torch.from_numpy(TABLE).to(torch.float64) * UNIT).to(torch.float32).to(magnitudes.device)
    return nearest.to(torch.uint8), torch.where(codes < 0, 0.0, values[nearest])


def tiles_with(components: Components, layout: TileLayout) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The tiles that hold the given ascending components, ascending, and the number of components in each."""
    tiles, counts = np.unique(layout.tile_of(components), return_counts=True)
    return tiles, counts


def gain(transform: str, *, is_matrix: bool) -> float:
    """Ratio of the integer inverse to the orthonormal inverse, apart from the rounding of the integer table."""
    if transform == "hadamard":
        once = math.sqrt(TILE_EDGE)
        return once * once if is_matrix else once
    once = BASIS_MAX / (math.sqrt(2 / TILE_EDGE) * math.cos(math.pi / (2 * TILE_EDGE)))
    return once * once / SHIFT if is_matrix else once


class SizedMerger(ABC):
    """Merges votes with magnitudes.

    The update is the mean over the round's total weight, times `outer_rate`. A node without votes in a tile counts as a
    vote for no change there.
    """

    def __init__(self, layout: TileLayout, transform: str, outer_rate: float, levels: int = 0) -> None:
        """levels: the contract's `demo.update_levels`."""
        self._layout = layout
        self._transform = transform
        self._outer_rate = outer_rate
        self._levels = levels
        self._weight = 0

    @abstractmethod
    def _add(self, votes: Votes, weight: int, tiles: npt.NDArray[np.int64]) -> None:
        """Add votes that are known to be complete. tiles: those that have votes."""

    @abstractmethod
    def _values(self, part: slice, first_tile: int, size: int) -> npt.NDArray[np.int64]:
        """V of whole tiles of `size` components each, numbered from `first_tile`, in units of the table."""

    def add(self, votes: Votes, weight: int) -> None:
        """Add `votes` with `weight` (1 or more). Raises ValueError before V can overflow the int64."""
        if weight < 1 or self._weight + weight > WEIGHT_SUM_MAX:
            raise ValueError(f"weights must be 1 or more and add up to at most {WEIGHT_SUM_MAX}")
        tiles = votes.tiles(self._layout)
        if votes.codes is None or len(votes.codes) != len(tiles):
            raise ValueError(f"there must be one code for each of the {len(tiles)} tiles that have votes")
        self._weight += weight
        with one_torch_thread():
            self._add(votes, weight, tiles)

    def merged(self) -> Merged | Levels:
        """V' and the scale of each tile that has votes: the nonzero V', int16 within ±127, or all within ±levels."""
        if self._levels:
            return self._in_levels()
        parts = [
            self._scaled(part.start, tile, self._values(part, tile, size))
            for part, tile, size in tile_ranges(self._layout)
        ]
        components, values, scales = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Merged(components, values, rounded(scales))

    def _scaled(
        self, first: int, first_tile: int, part: npt.NDArray[np.int64]
    ) -> tuple[Components, npt.NDArray[np.int16], npt.NDArray[np.float64]]:
        """Components and V' of whole tiles of one kind, and the scale of each tile that has votes."""
        positions = nonzero_positions(part)
        values, components = part[positions], positions + first
        _, counts = tiles_with(components, self._layout)
        starts = np.cumsum(counts) - counts
        largest = np.maximum.reduceat(np.abs(values), starts) if len(values) else np.zeros(0, np.int64)
        scaled = _scaled_to(VOTE_MAX, values, np.repeat(largest, counts))
        nonzero = scaled != 0
        return components[nonzero], scaled[nonzero].astype(np.int16), self._scales(largest, VOTE_MAX, first_tile)

    def _in_levels(self) -> Levels:
        values = np.zeros(self._layout.components, np.int8)
        scales = np.zeros(self._layout.tiles, np.float32)
        for part, tile, size in tile_ranges(self._layout):
            sums = self._values(part, tile, size).reshape(-1, size)
            largest = np.abs(sums).max(axis=1, initial=0)
            values[part] = _scaled_to(self._levels, sums, largest[:, None]).reshape(-1)
            of_tiles = rounded(self._scales(largest, self._levels * level_factor(self._levels), tile))
            scales[tile : tile + len(sums)] = np.where(largest > 0, of_tiles, np.float32(0))
        return Levels(self._levels, values, scales)

    def _scales(self, largest: npt.NDArray[np.int64], most: int, first_tile: int) -> npt.NDArray[np.float64]:
        """The scale S of each tile of one kind, numbered from `first_tile`. largest: M of each. most: what the decode
        has in its place."""
        tile_gain = gain(self._transform, is_matrix=first_tile < self._layout.matrix_tiles)
        unit = self._outer_rate * UNIT / (most * max(self._weight, 1))
        return (unit * largest / tile_gain).astype(np.float64)


def _scaled_to(levels: int, values: npt.NDArray[np.int64], largest: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """V' = sign(V)·⌊(2·levels·|V| + M)/(2M)⌋, in the shape of `values`. largest: M = max|V| of the tile of each."""
    return np.sign(values) * ((2 * levels * np.abs(values) + largest) // np.maximum(2 * largest, 1))


class MagnitudeMerger(SizedMerger):
    """Adds up votes with magnitudes as they arrive; uses eight bytes of memory a component."""

    def __init__(self, layout: TileLayout, transform: str, outer_rate: float, levels: int = 0) -> None:
        super().__init__(layout, transform, outer_rate, levels)
        self._sum = np.zeros(layout.components, np.int64)

    def _add(self, votes: Votes, weight: int, tiles: npt.NDArray[np.int64]) -> None:
        sizes = np.zeros(self._layout.tiles, np.int64)
        sizes[tiles] = weight * TABLE[votes.codes]
        for components, positive in votes.parts():
            size = sizes[self._layout.tile_of(components)]
            add_at(self._sum, components, torch.from_numpy(np.where(positive, size, -size)))

    def _values(self, part: slice, first_tile: int, size: int) -> npt.NDArray[np.int64]:
        return self._sum[part]


class MedianMagnitudeMerger(SizedMerger):
    """Merges signs under an aggregation rule, and gives the votes of a tile the median of the codes sent for it.

    The median is the lower one, by weight, over the nodes that have votes in the tile. Where they have less than half
    of the round's weight, it is at most the largest median of the tiles where they have more, and 0 if there is none.
    So while nodes with less than a quarter of the weight shout, no size is larger than one that another node sent.

    signs: merges the signs. selection: chooses which of them the update contains; without it, it contains all. Uses 512
    bytes of memory a tile, beside what the signs take.
    """

    def __init__(
        self,
        layout: TileLayout,
        transform: str,
        outer_rate: float,
        signs: Merger,
        selection: TopkSelection | None = None,
        levels: int = 0,
    ) -> None:
        super().__init__(layout, transform, outer_rate, levels)
        self._signs = signs
        self._selection = selection
        self._codes = np.zeros((layout.tiles, len(TABLE)), np.int16)  # the weight of each code
        self._sizes = np.zeros(layout.tiles, np.int64)

    def _add(self, votes: Votes, weight: int, tiles: npt.NDArray[np.int64]) -> None:
        self._signs.add(votes, weight)
        self._codes[tiles, votes.codes] += weight

    def _values(self, part: slice, first_tile: int, size: int) -> npt.NDArray[np.int64]:
        votes = self._signs.values(part)
        if self._selection is not None:
            selected = self._selection.positions(votes, size, first_tile)
            votes, merged = np.zeros_like(votes), votes
            votes[selected] = merged[selected]
        sized: npt.NDArray[np.int64] = votes.astype(np.int64) * np.repeat(
            self._sizes[first_tile : first_tile + len(votes) // size], size
        )
        return sized

    def merged(self) -> Merged | Levels:
        self._sizes = self._median_sizes()
        return super().merged()

    def _median_sizes(self) -> npt.NDArray[np.int64]:
        """The size of each tile, [tiles], in units of the table."""
        sizes = np.zeros(len(self._codes), np.int64)
        by_majority = np.zeros(len(self._codes), np.bool_)
        for first in range(0, len(self._codes), TILES_AT_ONCE):
            tiles = slice(first, first + TILES_AT_ONCE)
            up_to = np.cumsum(self._codes[tiles], axis=1, dtype=np.int32)
            sizes[tiles] = TABLE[np.argmax(2 * up_to >= up_to[:, -1:], axis=1)]
            by_majority[tiles] = 2 * up_to[:, -1] >= self._weight
        largest = sizes[by_majority].max(initial=0)
        return np.where(by_majority, sizes, np.minimum(sizes, largest))


def rounded(scales: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Round to float32 with eight significant bits, inside the bounds. Only the upper half of these bits travels."""
    bits = np.clip(scales, SCALE_MIN, SCALE_MAX).astype(np.float32).view(np.uint32)
    upper: npt.NDArray[np.uint32] = (bits + np.uint32(1 << 15)) & np.uint32(0xFFFF0000)
    return upper.view(np.float32)


def merger_of(run: RunSpec, layout: TileLayout, step: int) -> Merges:
    """Create the merger for the contract's kind of votes and its aggregation rule, for the update of `step`.

    Raises ContractError if this thinwire has no such rule.
    """
    rule, sized = run.aggregation, run.demo.magnitude == "tile"
    if sized and isinstance(rule, VoteSpec) and rule.sizes == "own":
        return MagnitudeMerger(layout, run.demo.transform, run.rule.outer_rate, run.demo.update_levels)
    selection = topk_selection(run.demo, layout, step)
    of_signs = None if sized else selection
    is_sum = rule.kind == "vote"
    signs = Merger(layout.components, of_signs) if is_sum else TwoSidedMerger(layout.components, rule, of_signs)
    if not sized:
        return signs
    demo = run.demo
    return MedianMagnitudeMerger(layout, demo.transform, run.rule.outer_rate, signs, selection, demo.update_levels)
