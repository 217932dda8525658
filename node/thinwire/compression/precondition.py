"""Preconditioning: the momentum accumulates the gradient divided by the root of its second moment, as in Adam.

Source: arXiv 1412.6980, algorithm 1. The second moment never leaves the node, so it costs no bandwidth.
docs/convergence measures the gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from thinwire.compression.compress import zeros
from thinwire_proto.exact.tiles import Part, TileLayout
from thinwire_proto.out_of_memory import retry_out_of_memory

EPSILON = 1e-8  # Adam's


class SecondMoment:
    """v ← β₂·v + (1 − β₂)·g²: one float32 number a parameter, in the parameters' own shapes."""

    def __init__(self, layout: TileLayout, beta: float, device: torch.device | str) -> None:
        self._beta = beta
        self._layout = layout
        # bias correction: v̂ = v / (1 − β₂ⁿ) = v / weight
        self._weight = torch.zeros(1, dtype=torch.float32)
        self._hold(zeros((layout.parameters,), device))

    def _hold(self, flat: Tensor) -> None:
        self._flat = flat
        self._of = self._layout.unflattened(flat)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `tensors` returned; those on the same device are not copied."""
        self._hold(state["second"].to(self._flat.device))
        self._weight.copy_(state["second_weight"])

    def begin(self) -> None:
        """Start a new gradient, whose tensors follow one by one."""
        self._weight.mul_(self._beta).add_(1 - self._beta)

    @property
    def weight(self) -> float:
        """The bias correction: v̂ = v / weight."""
        return self._weight.item()

    @property
    def scale(self) -> float:
        """g / root_of(g) times this factor is g / (√v̂ + ε)."""
        return math.sqrt(self.weight)

    def update_part(self, part: Part, gradient: Tensor, samples: int) -> None:
        """Update v with the gradient of a band, in its shape: a sum over `samples`, whose mean is g."""
        second = part.band(self._of[part.tensor.name])
        second.mul_(self._beta).addcmul_(gradient, gradient, value=(1 - self._beta) / samples**2)

    def root_of(self, part: Part, out: Tensor) -> Tensor:
        """Write √v + ε·`scale` of a band to `out`, in its shape."""
        return torch.sqrt(part.band(self._of[part.tensor.name]), out=out).add_(EPSILON * self.scale)

    def precondition(self, name: str, gradient: Tensor) -> Tensor:
        """Update v with g, and return g / (√v̂ + ε) of one tensor, as a new tensor."""
        return gradient / self.root(name, gradient)

    def root(self, name: str, gradient: Tensor) -> Tensor:
        """Update v with g, and return √v̂ + ε of one tensor, as a new tensor."""
        second, weight = self._of[name], self._weight.item()
        second.mul_(self._beta).addcmul_(gradient, gradient, value=1 - self._beta)
        return retry_out_of_memory(lambda: (second / weight).sqrt_().add_(EPSILON))

    def of(self, name: str) -> dict[str, Tensor]:
        """The learned tensors of one parameter, by name, not copied. All parameters share the weight."""
        return {"second": self._of[name], "second_weight": self._weight}

    def tensors(self) -> dict[str, Tensor]:
        """All learned tensors, by name, not copied."""
        return {"second": self._flat, "second_weight": self._weight}
