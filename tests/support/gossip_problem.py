"""A tiny problem for ranks that gossip: models, samples and steps that are equal wherever they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

FEATURES, HIDDEN, SAMPLES = 6, 5, 8


class Network(nn.Module):
    """Two layers with buffers, one of them expanded, a frozen parameter, and a parameter that gets a gradient only if
    it is used."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.hidden = nn.Linear(FEATURES, HIDDEN)
        self.out = nn.Linear(HIDDEN, 1)
        self.sometimes = nn.Parameter(torch.zeros(1))
        self.frozen = nn.Parameter(torch.zeros(FEATURES), requires_grad=False)
        self.register_buffer("scale", torch.zeros(1))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("offsets", torch.full((1,), float(seed)).expand(FEATURES), persistent=False)
        with torch.no_grad():
            for tensor in (*self.parameters(), self.scale):
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
        self.to(dtype)
        self.used = True
        self.scale: Tensor
        self.calls: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.out(torch.tanh(self.hidden(inputs + self.frozen)))
        return found + self.sometimes if self.used else found


def samples(rank: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """(inputs, targets) of a rank and step. Ranks have different targets, so that they pull apart."""
    generator = torch.Generator().manual_seed(10_000 * rank + step)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    targets = torch.sin(inputs.sum(1, keepdim=True)) + 0.3 * rank
    return inputs.to(dtype), targets.to(dtype)


def loss_of(model: Callable[[Tensor], Tensor], rank: int, step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    inputs, targets = samples(rank, step, dtype)
    return ((model(inputs) - targets) ** 2).mean()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, first: int, last: int) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def scaled_step(
    model: Network, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, rank: int, step: int, inf: bool
) -> None:
    """A step by a GradScaler. inf: the gradient overflows, so it skips the step."""
    optimizer.zero_grad()
    scaler.scale(loss_of(model, rank, step)).backward()  # type: ignore[no-untyped-call]
    if inf:
        assert model.out.bias.grad is not None
        model.out.bias.grad.fill_(torch.inf)
    scaler.step(optimizer)
    scaler.update()


def values(model: nn.Module) -> list[Tensor]:
    """Copies of all parameters and buffers."""
    return [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest relative difference of a tensor."""
    return max(
        float((a.double() - b.double()).norm() / (b.double().norm() + 1e-12))
        for a, b in zip(found, expected, strict=True)
    )


def equal(found: list[Any], expected: list[Any]) -> bool:
    """Whether all bits are equal."""
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
