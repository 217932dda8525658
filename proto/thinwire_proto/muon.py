"""The step of Muon: momentum, orthogonalized (Jordan et al., Muon, 2024).

    m ← μ·m + g                                     of a matrix
    step = orthogonal(g + μ·m) · 0.2·√max(rows, columns)

The factor makes a step as large as one of AdamW (arXiv 2502.16982).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from thinwire_proto.out_of_memory import retry_out_of_memory

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration: singular values from 0.001 to 1 end between 0.7 and 1.2 (Jordan et al., Muon, 2024)."""
ITERATIONS = 5
ADAMW_STEP = 0.2
"""Root mean square of a step of AdamW (arXiv 2502.16982)."""
EPSILON = 1e-7


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix with the same singular vectors, whose singular values are near 1, as a new tensor; 0 for 0. Of several
    matrices [n, rows, columns], it is that of each."""
    a, b, c = COEFFICIENTS
    add_product = torch.addmm if matrix.dim() == 2 else torch.baddbmm
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + EPSILON)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = add_product(x, add_product(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).contiguous()


def muon_step(momentum: Tensor, gradient: Tensor, decay: float) -> Tensor:
    """Add the gradient of a matrix to its momentum, and return the step at η = 1, as a new tensor. Several matrices [n,
    rows, columns] take a step each."""
    momentum.mul_(decay).add_(gradient)
    step = retry_out_of_memory(lambda: orthogonal(torch.add(gradient, momentum, alpha=decay)))
    return step.mul_(ADAMW_STEP * math.sqrt(max(gradient.shape[-2:])))
