"""The orthogonal factor of a matrix by Newton–Schulz iterations, with the same bits on every machine.

The problem: Muon's step (`thinwire_proto.muon`) is five iterations of three matrix products. In floating point a
product depends on the order of its sums, and five iterations carry the difference to every parameter.

The sketch: before each product, the operands are rounded to integers of `BITS` bits times a power of two, which is the
same for the whole matrix. Then every partial sum of a product is an integer below 2⁵³ in that unit, so float64 holds it
exactly, in any order and on any device. Everything between two products is elementwise, in float64, one IEEE operation
at a time and never fused. Integers of 16 bits are two of 8, so a device that is slow in float64 could multiply them as
bytes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from thinwire_proto.contract.rules.merged_muon import SIDE_MAX
from thinwire_proto.muon import COEFFICIENTS, ITERATIONS

BITS = 16
"""Size of an operand, with its sign. A product of two is at most 2³⁰, so a sum of 2²³ products is exact."""
assert 2 * (BITS - 1) + SIDE_MAX.bit_length() <= 53
MANTISSA_BITS, EXPONENT_BIAS = 52, 1023
SMALLEST = 2.0**-100
"""A matrix whose entries are all smaller counts as 0; no product of operands is subnormal."""


def orthogonal_exact(matrix: Tensor) -> Tensor:
    """A matrix with the same singular vectors, whose singular values are near 1, as a new float64 tensor; 0 for 0.

    matrix: float32 or float64, [rows, columns], finite. It is `thinwire_proto.muon.orthogonal` but for the rounding of
    operands. Raises RuntimeError or TypeError on a device without float64.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = rounded(matrix.mT.to(torch.float64) if is_tall else matrix.to(torch.float64))
    squares = math.fsum(torch.square(x).sum(1).tolist())  # each exact, and so is the rounding of their sum
    if squares == 0:
        return torch.zeros_like(matrix, dtype=torch.float64)
    x = x * (1 / math.sqrt(squares))
    for _ in range(ITERATIONS):
        x = rounded(x)
        square = rounded(x @ x.mT)
        factor = rounded((square @ square).mul_(c).add_(square.mul_(b)))
        x = (factor @ x).add_(x.mul_(a))
    return x.mT.contiguous() if is_tall else x


def rounded(values: Tensor, largest: Tensor | None = None) -> Tensor:
    """Round to integers of at most `BITS` bits, sign included, times a power of two that fits the largest magnitude.

    values: float64. largest: the magnitudes that decide, in a shape that broadcasts; by default one for all values. The
    result is a new tensor. Ties go to the even integer.
    """
    if largest is None:
        largest = values.abs().amax()
    # 2^e ≤ largest < 2^(e + 1), from the bits of the number: a logarithm may differ between machines
    exponent = (largest.view(torch.int64) >> MANTISSA_BITS) - EXPONENT_BIAS
    unit, inverse = (power_of_two(sign * (exponent - (BITS - 2))) for sign in (1, -1))
    whole = torch.mul(values, inverse).round_().mul_(unit)
    return torch.where(largest < SMALLEST, 0.0, whole)


def mean_squares(rows: Tensor) -> Tensor:
    """The mean square of each row of a float64 matrix, rounded as `rounded` does row by row; float64 [rows]."""
    squares = torch.square(rounded(rows, rows.abs().amax(1, keepdim=True)))
    if rows.shape[1] > SIDE_MAX:
        parts = [part.sum(1).tolist() for part in torch.split(squares, SIDE_MAX, 1)]
        sums = [math.fsum(of_row) for of_row in zip(*parts, strict=True)]
        return torch.tensor(sums, dtype=torch.float64, device=rows.device).div_(rows.shape[1])
    return squares.sum(1).div_(rows.shape[1])


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent as float64, for int64 exponents from −1022 to 1023, from its bits."""
    return ((exponent + EXPONENT_BIAS) << MANTISSA_BITS).view(torch.float64)
