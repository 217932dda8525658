"""Receives the gradients of a backward pass one by one.

`torch.autograd.grad` keeps all gradients until its end. Here each is added to a sum at once and freed, so all of them
never exist together. Whether a gradient is finite is known only after its last tensor. If one is not, the gradient is
computed again and taken from the sums. That leaves a rounding error in proportion to the gradient, and gradients that
are not finite come with others that are huge. So the receiver bounds the error; beyond `ROUNDING_MAX` the sums are
spoiled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from thinwire_node.training.failures import NotFinite

Tensors = Mapping[str, Tensor]
"""Tensors by parameter name, float32, in the parameter's shape."""

ROUNDING_MAX = 2.0**-12
"""The largest error of a sum after adding and taking a gradient, relative to the largest element of its tensor."""
FLOAT32_STEP = 2.0**-23


class GradientReceiver:
    """Receives the gradients of leaves on a CPU.

    For a rule that needs the whole gradient of a micro-batch, each tensor is copied into memory that is used again for
    each batch: large new tensors are slow on a CPU, because the system clears each of their pages. seen: names of the
    gradients that the newest backward pass has delivered."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._kept: dict[str, Tensor] = {}
        self._sums: Tensors | None = None
        self._weight = 0
        self._largest: dict[str, Tensor] | None = None

    def attach(self, parameters: Tensors) -> None:
        """Receive the gradients of these leaves from now on."""
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self._receive, name))  # type: ignore[no-untyped-call]

    def _receive(self, name: str, parameter: Tensor) -> None:
        # a backward pass records nothing, so the sums need no `no_grad`
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        if self._sums is None:
            if name not in self._kept:
                self._kept[name] = torch.empty_like(parameter, requires_grad=False)
            self._kept[name].copy_(gradient)
        elif name in self._sums:
            # the sum of a gradient carries what is not finite; one whose sum overflows is useless too
            if not math.isfinite(gradient.sum().item()):
                raise NotFinite(spoils=bool(self.seen))
            self._sums[name].add_(gradient, alpha=self._weight)
            if self._largest is not None:
                self._largest[name] = torch.linalg.vector_norm(gradient, torch.inf)
        self.seen.append(name)

    def backward(self, loss: Tensor, parameters: Tensors) -> dict[str, Tensor]:
        """The gradient of a loss by parameter name; zeros where the loss does not depend on the parameter."""
        self.seen.clear()
        torch.autograd.backward(loss)
        for name in parameters.keys() - set(self.seen):
            self._kept[name] = torch.zeros_like(parameters[name], requires_grad=False)
        return {name: self._kept[name] for name in parameters}

    def add(self, loss: Tensor, sums: Tensors, weight: int) -> None:
        """Add the gradient of a loss times `weight` to those sums that there are. Raises NotFinite."""
        self.seen.clear()
        self._sums, self._weight = sums, weight
        try:
            torch.autograd.backward(loss)
        finally:
            self._sums = None

    def take(self, loss: Tensor, sums: Tensors, weight: int) -> float:
        """Undo `add`. Returns a bound on the error that this leaves in a sum, relative to the largest element of its
        tensor. Raises NotFinite."""
        largest = self._largest = {}
        try:
            self.add(loss, sums, -weight)
        finally:
            self._largest = None
        return max((self._rounding(sums[name], weight * found.item()) for name, found in largest.items()), default=0.0)

    def _rounding(self, total: Tensor, largest: float) -> float:
        left = torch.linalg.vector_norm(total, torch.inf).item()
        if not largest:
            return 0.0
        return FLOAT32_STEP * largest / left if left else float("inf")


def check_finite(loss: Tensor, gradients: Tensors | None = None) -> None:
    """Check the loss, and the sums of all gradients: one pass, and a gradient whose sum overflows is useless too.
    Raises NotFinite."""
    sums = torch.stack([loss, *(gradient.sum() for gradient in (gradients or {}).values())])
    if not bool(sums.isfinite().all()):
        raise NotFinite


@torch.no_grad()
def add_gradient(sums: Tensors, gradients: Tensors, weight: int) -> None:
    """Add a gradient times `weight` to sums, which may be on another device."""
    for name, total in sums.items():
        total.add_(gradients[name].to(total.device), alpha=weight)
