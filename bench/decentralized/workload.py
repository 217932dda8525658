"""A model whose computing takes a given time, without a core: each layer sleeps, as a processor waits for a GPU."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

LAYERS = 8
WIDTH = 88
FORWARD_SHARE = 1 / 3
"""Of the computing time; the backward pass has the rest."""


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        time.sleep(ctx.backward_s)
        return gradients[0], None, None


class PacedModel(nn.Module):
    """Layers of width × width. compute_s: of a forward and a backward pass together, shared by the layers evenly."""

    def __init__(self, compute_s: float, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        self._forward_s = compute_s * FORWARD_SHARE / LAYERS
        self._backward_s = compute_s * (1 - FORWARD_SHARE) / LAYERS

    def forward(self, values: Tensor) -> Tensor:
        wait: Any = _Wait.apply
        for layer in self.layers:
            values = wait(torch.tanh(layer(values)), self._forward_s, self._backward_s)
        return values


def loss_of(model: nn.Module, width: int = WIDTH) -> Tensor:
    found: Tensor = (model(torch.ones(4, width)) ** 2).mean()
    return found


def parameters_of(width: int) -> int:
    return LAYERS * (width * width + width)
