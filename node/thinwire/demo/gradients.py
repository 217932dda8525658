"""The gradients of a step: what this rank holds of them, and whether they are finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.placement import local

GRADIENT_MAX = 1e18
"""Beyond it the second moment would overflow and stay infinite."""


def gradient_of(parameter: Tensor, factor: float) -> Tensor:
    """`factor` times the gradient, or zeros in place of None: float32, contiguous, of this rank's part."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(local(parameter), memory_format=torch.contiguous_format)
    held = local(gradient)
    dense = (held.to_dense() if held.is_sparse else held).detach().float().contiguous()
    return dense if factor == 1 else dense * factor


def all_finite(gradients: Sequence[Tensor]) -> bool:
    """Whether all gradients are finite and below GRADIENT_MAX. Waits for the device once."""
    held = [gradient for gradient in gradients if gradient.numel()]
    if not held:
        return True
    device = held[0].device
    largest = [torch.linalg.vector_norm(gradient, math.inf).to(device) for gradient in held]
    return bool((torch.stack(largest) < GRADIENT_MAX).all())  # false for NaN
