"""Preconditioning: what feeds the momentum is the gradient over the root of its own second moment, as in Adam (arXiv
1412.6980, algorithm 1). It never leaves the node, so it costs nothing on the wire; docs/convergence has what it is
worth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor

from thinwire_proto.exact.tiles import Part, TileLayout

EPSILON = 1e-8  # Adam's


class SecondMoment:
    """v ← β₂·v + (1 − β₂)·g², one number a parameter, float32, in the parameters' own shapes."""

    def __init__(self, layout: TileLayout, beta: float, device: torch.device | str) -> None:
        self._beta = beta
        self._flat = torch.zeros(layout.parameters, device=device)
        # what β₂ⁿ has left out so far, so that v̂ = v / (1 − β₂ⁿ) = v / weight
        self._weight = torch.zeros(1)
        sizes = [tensor.rows * tensor.columns for tensor in layout.tensors]
        ends = list(accumulate(sizes))
        self._of: Mapping[str, Tensor] = {
            tensor.name: self._flat[end - size : end].view(tensor.shape)
            for tensor, size, end in zip(layout.tensors, sizes, ends, strict=True)
        }

    def begin(self) -> None:
        """A new gradient is coming, tensor by tensor."""
        self._weight.mul_(self._beta).add_(1 - self._beta)

    @property
    def weight(self) -> float:
        """v̂ = v / weight."""
        return self._weight.item()

    @property
    def scale(self) -> float:
        """g / root_of(g) times this is g / (√v̂ + ε)."""
        return math.sqrt(self.weight)

    def root_of(self, part: Part, gradient: Tensor, samples: int, out: Tensor) -> Tensor:
        """√v + ε·`scale` of a band, g included in v, in `out`. gradient, out: in the band's shape; the gradient is a
        sum over `samples`, and g its mean."""
        second = part.band(self._of[part.tensor.name])
        second.mul_(self._beta).addcmul_(gradient, gradient, value=(1 - self._beta) / samples**2)
        return torch.sqrt(second, out=out).add_(EPSILON * self.scale)

    def precondition(self, name: str, gradient: Tensor) -> Tensor:
        """g / (√v̂ + ε) of one tensor, g included in v; a tensor of its own."""
        return gradient / self.root(name, gradient)

    def root(self, name: str, gradient: Tensor) -> Tensor:
        """√v̂ + ε of one tensor, g included in v; a tensor of its own."""
        second = self._of[name]
        second.mul_(self._beta).addcmul_(gradient, gradient, value=1 - self._beta)
        return (second / self._weight.item()).sqrt_().add_(EPSILON)

    def of(self, name: str) -> dict[str, Tensor]:
        """What is learned of one tensor, by name; not copies. The weight is everybody's."""
        return {"second": self._of[name], "second_weight": self._weight}

    def tensors(self) -> dict[str, Tensor]:
        """All that is learned here, by name; not copies."""
        return {"second": self._flat, "second_weight": self._weight}
