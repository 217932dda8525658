"""Adam's two moments, for rules whose nodes take local steps.

The steps do not use `torch.optim.AdamW`, which changes θ_local alone and rounds differently. The offset would then be a
difference of two large numbers. It also stores a count of steps, where the saved moments hold the bias correction
itself, so saved moments would give other results. A test compares the two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.compression.precondition import SecondMoment
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.out_of_memory import retry_out_of_memory


class AdamMoments:
    """Adam's two moments, with bias correction (arXiv 1412.6980, algorithm 1)."""

    def __init__(self, layout: TileLayout, beta1: float, beta2: float, device: torch.device | str) -> None:
        self._second = SecondMoment(layout, beta2, device)
        self._beta = beta1
        self._flat = torch.zeros(layout.parameters, device=device)
        self._weight = torch.zeros(1)  # the bias correction 1 − β₁ⁿ, as in SecondMoment
        self._of = layout.unflattened(self._flat)

    def begin(self) -> None:
        """Start a new gradient. Its tensors follow through `step`."""
        self._second.begin()
        self._weight.mul_(self._beta).add_(1 - self._beta)

    def step(self, name: str, gradient: Tensor) -> Tensor:
        """Add the gradient of one tensor and return m̂ / (√v̂ + ε) as a new tensor, on the gradient's device."""
        first = self._of[name]
        here = retry_out_of_memory(lambda: gradient.to(first.device))
        first.mul_(self._beta).add_(here, alpha=1 - self._beta)
        step = self._second.root(name, here).reciprocal_().mul_(first).div_(self._weight.item())
        return retry_out_of_memory(lambda: step.to(gradient.device))

    def tensors(self) -> dict[str, Tensor]:
        """All moments by name. Not copies."""
        return {"first": self._flat, "first_weight": self._weight} | self._second.tensors()
