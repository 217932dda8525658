"""Magnitudes of votes: one byte a tile on the wire, merged in integers.

The problem: the part that a node extracts from its momentum has a size, and all replicas must step by the same size to
the bit. A sum of floats from many nodes would depend on their order.

The sketch: a node sends the size of its votes in a tile as a code, and each code stands for an integer in a published
table. So `aggregation` merges them in integers, the same in any order. The coordinator computes V' (V scaled to ±127 in
each tile) and one scale a tile, once, and sends both in the update. No other machine's division or
rounding enters a replica. The node subtracts from its momentum what the code stands for, not the true magnitude, so the
quantization error stays in the momentum.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_proto.contract import TILE_EDGE
from thinwire_proto.exact.decode import SHIFT
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.transform import BASIS_MAX
from thinwire_proto.exact.votes import Components

OCTAVE = (128, 140, 152, 166, 181, 197, 215, 235)
"""round(128·2^(i/8)): the values of the codes of the lowest octave. With eight codes an octave the error is at most 5%.
"""
TABLE: npt.NDArray[np.int64] = np.array([OCTAVE[code % 8] << (code // 8) for code in range(256)], np.int64)
"""The value of each code, in `UNIT`s: 32 octaves, each exactly twice the one before."""
UNIT = 2.0**-35
"""In units of the orthonormal transform, hence of a parameter. The votes of a tile lie between 3.7e-9 and 14.7."""
SCALE_MIN, SCALE_MAX = 2.0**-100, 1.0
"""Bounds of a tile's scale S. X is an integer, so a change S·X is 0 or at least 2⁻¹⁰⁰. It is never subnormal, where
machines differ."""


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


def gain(*, is_matrix: bool) -> float:
    """Ratio of the integer inverse to the orthonormal inverse, apart from the rounding of the integer table."""
    once = BASIS_MAX / (math.sqrt(2 / TILE_EDGE) * math.cos(math.pi / (2 * TILE_EDGE)))
    return once * once / SHIFT if is_matrix else once


def rounded(scales: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Round to float32 with eight significant bits, inside the bounds. Only the upper half of these bits travels."""
    bits = np.clip(scales, SCALE_MIN, SCALE_MAX).astype(np.float32).view(np.uint32)
    upper: npt.NDArray[np.uint32] = (bits + np.uint32(1 << 15)) & np.uint32(0xFFFF0000)
    return upper.view(np.float32)
