"""Rotary positions (arXiv 2104.09864)."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire_proto.data.conversations import positions_of, visible


def angles(length: int, head_width: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of the angles, each [length, head_width / 2]."""
    exponent = torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width
    of_each = torch.outer(torch.arange(length, device=device, dtype=torch.float32), base**-exponent)
    return of_each.cos(), of_each.sin()


def packed_angles(cos: Tensor, sin: Tensor, marks: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """cos and sin for packed conversations, each [batch, 1, length, head_width / 2], and what each token sees, bool
    [batch, 1, length, length]. Without marks, the same cos and sin, and None: each token sees all before it."""
    if marks is None:
        return cos, sin, None
    positions = positions_of(marks)
    return cos[positions][:, None], sin[positions][:, None], visible(marks)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + half) of the last dimension of x [batch, heads, length, head_width]."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
