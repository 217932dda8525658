"""Magnitudes that travel: one byte a tile beside the votes, and their merge in integers.

The problem: what a node took out of its momentum has a size, and the size that everybody steps by must be the same to
the bit. Floats from the nodes, added up, would hang on their order.

The sketch: a node says how large its votes in a tile are by a code, and the code stands for an integer of a published
table. So V = Σ w·s·a is a sum of integers, the same in any order and through any tree. V' = V scaled to ±127 in each
tile, and one scale a tile, are worked out once, by the coordinator, and travel in the update; nobody else's division
or rounding goes into a replica. What the node takes out of its momentum is what the code stands for, and not the true
magnitude: the difference stays at home, with everything else that was not sent.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_proto.contract import TILE_EDGE, WEIGHT_SUM_MAX, RunSpec
from thinwire_proto.exact.decode import SHIFT, VOTE_MAX
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.topk import strongest_of
from thinwire_proto.exact.transform import BASIS_MAX
from thinwire_proto.exact.votes import (
    Components,
    Merged,
    Merger,
    Merges,
    Votes,
    add_at,
    places_of,
    tensor_of,
    tiles_in_chunks,
)

OCTAVE = (128, 140, 152, 166, 181, 197, 215, 235)
"""round(128·2^(i/8)): what the codes of the lowest octave stand for. Eight codes an octave are at most 5% off."""
TABLE: npt.NDArray[np.int64] = np.array([OCTAVE[code % 8] << (code // 8) for code in range(256)], np.int64)
"""What each code stands for, in `UNIT`s: 32 octaves, doubling exactly."""
UNIT = 2.0**-35
"""Of the orthonormal transform, so of a parameter: a tile's votes are 3.7e-9 to 14.7 large."""
SCALE_MIN, SCALE_MAX = 2.0**-100, 1.0
"""Of a tile's scale S. X is an integer, so a change S·X is 0, or 2⁻¹⁰⁰ or more: never subnormal, where machines
differ."""

# V and what `scaled` makes of it fit an int64, whatever weights the contract allows and nodes send
assert (2 * VOTE_MAX + 1) * WEIGHT_SUM_MAX * int(TABLE[-1]) < 1 << 63


def coded(magnitudes: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest codes of float magnitudes, uint8, and what they stand for, float32, exact; both in the same shape. A
    magnitude too small for any code stands for 0, and is not to be sent; one too large for the largest."""
    codes = (8 * torch.log2(magnitudes.clamp(min=1e-30) / (OCTAVE[0] * UNIT))).round()
    kept = codes.clamp(0, len(TABLE) - 1).to(torch.int64)
    values = (torch.from_numpy(TABLE).to(torch.float64) * UNIT).to(torch.float32).to(magnitudes.device)
    return kept.to(torch.uint8), torch.where(codes < 0, 0.0, values[kept])


def tiles_with(components: Components, layout: TileLayout) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The tiles that ascending components lie in, ascending, and how many lie in each."""
    tiles, counts = np.unique(layout.tile_of(components), return_counts=True)
    return tiles, counts


def gain(transform: str, *, is_matrix: bool) -> float:
    """How many times larger the integer inverse is than the orthonormal one, but for the rounding of its table."""
    if transform == "hadamard":
        once = math.sqrt(TILE_EDGE)
        return once * once if is_matrix else once
    once = BASIS_MAX / (math.sqrt(2 / TILE_EDGE) * math.cos(math.pi / (2 * TILE_EDGE)))
    return once * once / SHIFT if is_matrix else once


class MagnitudeMerger:
    """Adds up votes with their magnitudes as they come; memory is eight bytes a component.

    The update is the mean over the round's whole weight, times `outer_rate`: a node that has no votes in a tile says
    that it wants no change there.
    """

    def __init__(self, layout: TileLayout, transform: str, outer_rate: float) -> None:
        self._layout = layout
        self._transform = transform
        self._outer_rate = outer_rate
        self._sum = np.zeros(layout.components, np.int64)
        self._weight = 0

    def add(self, votes: Votes, weight: int) -> None:
        """Count `votes` `weight` times (1 or more). Raises ValueError before V can leave the int64."""
        if weight < 1 or self._weight + weight > WEIGHT_SUM_MAX:
            raise ValueError(f"weights must be 1 or more and add up to at most {WEIGHT_SUM_MAX}")
        _, counts = tiles_with(votes.components, self._layout)
        if votes.codes is None or len(votes.codes) != len(counts):
            raise ValueError(f"there must be one code for each of the {len(counts)} tiles that have votes")
        self._weight += weight
        size = tensor_of(np.repeat(weight * TABLE[votes.codes], counts))
        add_at(self._sum, votes.components, size.mul_(tensor_of(votes.positive).to(torch.int8).mul_(2).sub_(1)))

    def merged(self) -> Merged:
        """V' without zeros, int16 up to ±127, and the scale of each tile that has one."""
        parts = [self._scaled(first, tile, part) for first, tile, _, part in tiles_in_chunks(self._sum, self._layout)]
        components, values, scales = (np.concatenate(of_all) for of_all in zip(*parts, strict=True))
        return Merged(components, values, rounded(scales))

    def _scaled(
        self, first: int, first_tile: int, part: npt.NDArray[np.int64]
    ) -> tuple[Components, npt.NDArray[np.int16], npt.NDArray[np.float64]]:
        """Components and V' of whole tiles of one kind, and the scale of each that has votes."""
        places = places_of(part)
        values, components = part[places], places + first
        _, counts = tiles_with(components, self._layout)
        starts = np.cumsum(counts) - counts
        largest = np.maximum.reduceat(np.abs(values), starts) if len(values) else np.zeros(0, np.int64)
        divisor = np.repeat(largest, counts)
        scaled = np.sign(values) * ((2 * VOTE_MAX * np.abs(values) + divisor) // np.maximum(2 * divisor, 1))
        tile_gain = gain(self._transform, is_matrix=first_tile < self._layout.matrix_tiles)
        unit = self._outer_rate * UNIT / (VOTE_MAX * max(self._weight, 1))
        scales = (unit * largest / tile_gain).astype(np.float64)
        kept = scaled != 0
        return components[kept], scaled[kept].astype(np.int16), scales


def rounded(scales: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """The nearest float32 of eight significant bits, inside the bounds: what travels is the upper half of it."""
    bits = np.clip(scales, SCALE_MIN, SCALE_MAX).astype(np.float32).view(np.uint32)
    upper: npt.NDArray[np.uint32] = (bits + np.uint32(1 << 15)) & np.uint32(0xFFFF0000)
    return upper.view(np.float32)


def merger_of(run: RunSpec, layout: TileLayout, step: int) -> Merges:
    """A merger of the kind of votes that the contract has, over its tile space, for the update of this step."""
    if run.demo.magnitude == "tile":
        return MagnitudeMerger(layout, run.demo.transform, run.rule.outer_rate)
    return Merger(layout.components, strongest_of(run.demo, layout, step))
