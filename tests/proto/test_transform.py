"""The published tables equal their formulas, and the floating-point transforms are invertible."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from thinwire_proto.exact.transform import (
    BASIS_MAX,
    COLUMN_SUM_MAX,
    dct_table,
    float_basis,
    forward,
    inverse,
)

CPU = torch.device("cpu")


def test_the_dct_table_is_the_rounded_basis() -> None:
    basis = [
        [math.sqrt((1 if k == 0 else 2) / 64) * math.cos(math.pi * (2 * n + 1) * k / 128) for n in range(64)]
        for k in range(64)
    ]
    largest = max(abs(value) for row in basis for value in row)
    assert dct_table() == [[round(127 * value / largest) for value in row] for row in basis]


def test_the_bounds_of_the_decode_hold() -> None:
    table = np.abs(np.array(dct_table()))
    assert table.max() == BASIS_MAX
    assert table.sum(0).max() == COLUMN_SUM_MAX
    after_shift = math.floor(127 * COLUMN_SUM_MAX / 512 + 0.5)
    assert 127 * COLUMN_SUM_MAX == 661_035
    assert after_shift <= 1292
    assert after_shift * COLUMN_SUM_MAX < 2**24


@pytest.mark.parametrize("shape", [(3, 64, 64), (5, 64)])
def test_float_transforms_are_orthonormal(shape: tuple[int, ...]) -> None:
    basis = float_basis(CPU)
    assert torch.allclose(basis @ basis.T, torch.eye(64), atol=1e-6)
    tiles = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    coefficients = forward(tiles)
    assert torch.allclose(inverse(coefficients), tiles, atol=1e-5)
    assert torch.allclose(coefficients.norm(), tiles.norm(), rtol=1e-5)
