"""The aggregation rule: how the votes of a round become the update. `merger_of` chooses it.

Each vote counts with its node's weight, so V = Σ w·s is a sum of integers, the same in any order and through any tree.
Only the coordinator merges: nodes and replay apply the update as it is, whatever rule made it.

With `demo.vote_levels`, s is an integer within ± that many levels, and a code stands for one of them.

With magnitudes, the problem: one node can shout. If each vote also counted with the size that its node sent, a vote of
the largest code would weigh 2³² times one of the smallest. So the votes of a tile have one size: the median of those
that nodes sent for it. If nodes with less than half of the round's weight have votes in a tile, their median may be
that of one node; there the size is at most the largest median of the other tiles. The answers that fail: a mean of the
sizes, which one large size moves; a limit on each size, which needs the votes of the round until its end; a limit from
the last update, which a patient node raises round by round. Of the rules that look at the votes of both sides, a quorum
and a trimmed sum missed their goal against hostile nodes; the trust in nodes reached it (docs/adversary).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from thinwire_proto.contract import WEIGHT_SUM_MAX, RunSpec, VotingRuleSpec
from thinwire_proto.exact.decode import VOTE_MAX, level_factor
from thinwire_proto.exact.magnitudes import TABLE, UNIT, gain, rounded, tiles_with
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.topk import TopkSelection, topk_selection
from thinwire_proto.exact.votes import Components, Levels, Merged, Merger, Merges, Votes, nonzero_positions, tile_ranges

TILES_AT_ONCE = 1 << 12
"""Tiles whose median is computed at a time; bounds the extra memory to 16 MiB."""

# V and the numerator of V' fit an int64, whatever weights the contract allows and nodes send
assert (2 * VOTE_MAX + 1) * WEIGHT_SUM_MAX * int(TABLE[-1]) < 1 << 63


def merger_of(run: RunSpec, layout: TileLayout, step: int) -> Merges:
    """Create the merger of a round's votes, for the update of `step`."""
    demo, selection = run.demo, topk_selection(run.demo, layout, step)
    if demo.magnitude != "tile":
        return Merger(layout.components, selection)
    assert isinstance(run.rule, VotingRuleSpec)
    return SizedMerger(layout, run.rule.update_factor, selection, demo.update_levels, demo.largest_vote)


class SizedMerger:
    """Merges votes with magnitudes: adds up the signs, and gives the votes of a tile the median of the codes sent for
    it.

    The update is the mean over the round's total weight, times `factor`. A node without votes in a tile counts as a
    vote for no change there.

    The median is the lower one, by weight, over the nodes that have votes in the tile. Where they have less than half
    of the round's weight, it is at most the largest median of the tiles where they have more, and 0 if there is none.
    So while nodes with less than a quarter of the weight shout, no size is larger than one that another node sent.

    selection: chooses which merged signs the update contains; without it, it contains all. levels: the contract's
    `demo.update_levels`. largest_vote: `DemoSpec.largest_vote`. Uses 512 bytes of memory a tile, beside what the signs
    take.
    """

    def __init__(
        self,
        layout: TileLayout,
        factor: float,
        selection: TopkSelection | None = None,
        levels: int = 0,
        largest_vote: int = 1,
    ) -> None:
        self._layout = layout
        self._factor = factor
        self._selection = selection
        self._levels = levels
        self._signs = Merger(layout.components, largest_vote=largest_vote)
        self._weight = 0
        self._codes = np.zeros((layout.tiles, len(TABLE)), np.int16)  # the weight of each code
        self._sizes = np.zeros(layout.tiles, np.int64)

    def add(self, votes: Votes, weight: int) -> None:
        """Add `votes` with `weight` (1 or more). Raises ValueError before V can overflow the int64."""
        tiles = votes.tiles(self._layout)
        if votes.codes is None or len(votes.codes) != len(tiles):
            raise ValueError(f"there must be one code for each of the {len(tiles)} tiles that have votes")
        self._signs.add(votes, weight)
        self._weight += weight
        self._codes[tiles, votes.codes] += weight

    def merged(self) -> Merged | Levels:
        """V' and the scale of each tile that has votes: the nonzero V', int16 within ±127, or all within ±levels."""
        self._sizes = self._median_sizes()
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
        tile_gain = gain(is_matrix=first_tile < self._layout.matrix_tiles)
        unit = self._factor * UNIT / (most * max(self._weight, 1))
        return (unit * largest / tile_gain).astype(np.float64)

    def _values(self, part: slice, first_tile: int, size: int) -> npt.NDArray[np.int64]:
        """V of whole tiles of `size` components each, numbered from `first_tile`, in units of the table."""
        votes = self._signs.values(part)
        if self._selection is not None:
            selected = self._selection.positions(votes, size, first_tile)
            votes, merged = np.zeros_like(votes), votes
            votes[selected] = merged[selected]
        sized: npt.NDArray[np.int64] = votes.astype(np.int64) * np.repeat(
            self._sizes[first_tile : first_tile + len(votes) // size], size
        )
        return sized

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


def _scaled_to(levels: int, values: npt.NDArray[np.int64], largest: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """V' = sign(V)·⌊(2·levels·|V| + M)/(2M)⌋, in the shape of `values`. largest: M = max|V| of the tile of each."""
    return np.sign(values) * ((2 * levels * np.abs(values) + largest) // np.maximum(2 * largest, 1))
