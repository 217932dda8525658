"""The transform of a tile, in floating point for the node's own momentum and in integers for the decode.

The floating-point form is orthonormal, and its results never leave the node. The integer form is a published table: A =
round(127·b / max b) for the DCT-II basis b. Since b is a cosine of a multiple of π/128, 64
integers and the constant row define the table. They are written out here, so that no machine's cosine enters the
result.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from thinwire_proto.contract import TILE_EDGE

# round(127·cos(mπ/128) / cos(π/128)) for m = 1…64; tests/proto/test_transform.py recomputes them.
# fmt: off
COSINES = (
    127, 127, 127, 126, 126, 126, 125, 125, 124, 123, 122, 122, 121, 120, 119, 117,
    116, 115, 113, 112, 111, 109, 107, 106, 104, 102, 100,  98,  96,  94,  92,  90,
     88,  85,  83,  81,  78,  76,  73,  71,  68,  65,  63,  60,  57,  54,  51,  49,
     46,  43,  40,  37,  34,  31,  28,  25,  22,  19,  16,  12,   9,   6,   3,   0,
)
# fmt: on
CONSTANT_ROW = 90  # round(127·√½ / cos(π/128))
BASIS_MAX = 127
COLUMN_SUM_MAX = 5205
"""Largest column sum of magnitudes of the DCT table. The bounds of the decode rest on it."""


def _cosine(m: int) -> int:
    """127·cos(mπ/128), rounded, from the published quarter wave; m is never a multiple of 128 here."""
    m %= 256
    if m > 128:
        m = 256 - m
    return COSINES[m - 1] if m <= 64 else -COSINES[127 - m]


def dct_table() -> list[list[int]]:
    """The DCT-II basis in integers, 64 rows (frequencies) of 64 columns (positions)."""
    rows = [[CONSTANT_ROW] * TILE_EDGE]
    for frequency in range(1, TILE_EDGE):
        rows.append([_cosine((2 * position + 1) * frequency) for position in range(TILE_EDGE)])
    return rows


@lru_cache(maxsize=16)
def integer_basis(device: torch.device) -> Tensor:
    """The table, [64, 64] float32 with integer values: rows are frequencies, columns are positions."""
    return torch.tensor(dct_table(), dtype=torch.float32, device=device)


@lru_cache(maxsize=16)
def float_basis(device: torch.device) -> Tensor:
    """The orthonormal basis b, [64, 64] float32: rows are frequencies, columns are positions."""
    rows = [
        [
            math.sqrt((1 if frequency == 0 else 2) / TILE_EDGE)
            * math.cos(math.pi * (2 * position + 1) * frequency / (2 * TILE_EDGE))
            for position in range(TILE_EDGE)
        ]
        for frequency in range(TILE_EDGE)
    ]
    return torch.tensor(rows, dtype=torch.float32, device=device)


def forward(tiles: Tensor) -> Tensor:
    """Coefficients of tiles [n, 64, 64] or [n, 64] in floating point: C = b·M·bᵀ, or b·m."""
    b = float_basis(tiles.device)
    return b @ tiles @ b.T if tiles.dim() == 3 else tiles @ b.T


def inverse(coefficients: Tensor) -> Tensor:
    """Tiles of coefficients [n, 64, 64] or [n, 64] in floating point: M = bᵀ·C·b, or bᵀ·c."""
    b = float_basis(coefficients.device)
    return b.T @ coefficients @ b if coefficients.dim() == 3 else coefficients @ b
