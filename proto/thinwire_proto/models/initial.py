"""Draws the initial weights of the built-in transformers, as GPT-2 does."""

from __future__ import annotations

import math

import torch
from torch import nn

INITIAL_STD = 0.02


@torch.no_grad()
def draw_weights(model: nn.Module, layers: int, residual: tuple[str, ...], generator: torch.Generator) -> None:
    """Draw normal weights, and set those of norms to 1.

    residual: endings of the names of the matrices that write to the residual stream; these are scaled by 1/√(2·layers).
    """
    for name, tensor in model.named_parameters():
        if tensor.dim() == 1:
            tensor.fill_(1.0)
            continue
        std = INITIAL_STD / math.sqrt(2 * layers) if name.endswith(residual) else INITIAL_STD
        tensor.normal_(0.0, std, generator=generator)
