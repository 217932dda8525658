"""The rule `local_adamw`: each micro-batch is a step of AdamW on the node's own parameters θ_local.

At the extraction, the difference θ_base − θ_local is added to a buffer e of everything that was not sent yet: the error
feedback (arXiv 2508.15706, 2510.03371).

    offset = θ_local − θ_base               0 after each extraction
    offset ← offset − η·(m̂ / (√v̂ + ε) + λ·θ_local)    each micro-batch; m and v are kept from round to round
    e ← β·e − offset                        at the extraction, which then takes the largest components of e

docs/local-rules.md explains the design.

The step does not use `torch.optim.AdamW`, which changes θ_local alone and rounds differently. The offset would then be
a difference of two large numbers. It also stores a count of steps, where the saved momentum holds the bias correction
itself, so saved moments would give other results. A test compares the two.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from thinwire_node.compression.momentum import Sent
from thinwire_node.compression.precondition import SecondMoment
from thinwire_node.training.rules.rule import RULES, Compressed, Tensors
from thinwire_proto.contract import Contract, LocalAdamWSpec
from thinwire_proto.exact.tiles import TileLayout


@RULES.register("local_adamw")
class LocalAdamW(Compressed):
    """Makes a step of AdamW for each micro-batch (arXiv 1711.05101, algorithm 2, with λ·η for the decay)."""

    sums = None

    def __init__(self, contract: Contract, layout: TileLayout, device: torch.device | str) -> None:
        super().__init__(contract, layout, device)
        assert isinstance(contract.rule, LocalAdamWSpec)
        self._moments = Moments(layout, contract.rule, device)
        self._decay = contract.rule.weight_decay
        self._offset = {tensor.name: torch.zeros(tensor.shape, device=device) for tensor in layout.tensors}

    @property
    def offset(self) -> Tensors:
        return self._offset

    @torch.no_grad()
    def learn(self, parameters: Tensors, gradients: Tensors | None, samples: int, rate: float) -> None:
        assert gradients is not None
        self._moments.begin()
        for name, offset in self._offset.items():
            step = self._moments.step(name, gradients[name]).add_(parameters[name], alpha=self._decay)
            offset.sub_(step, alpha=rate)
            parameters[name].sub_(step, alpha=rate)

    def extract(self, k: int, rate: float) -> Sent:
        sent = self.momentum.accumulate_and_extract(self._offset, -1.0, 1, k)
        self.clear()
        return sent

    def clear(self) -> None:
        for offset in self._offset.values():
            offset.zero_()

    def forget(self) -> None:
        self.clear()
        self.momentum.forget()
        for tensor in self._moments.tensors().values():
            tensor.zero_()

    def state(self) -> dict[str, Tensor]:
        return self.momentum.tensors() | self._moments.tensors()

    def load(self, state: Tensors) -> None:
        moments = self._moments.tensors()
        for name, tensor in moments.items():
            tensor.copy_(state[name])
        self.momentum.load({name: tensor for name, tensor in state.items() if name not in moments})


class Moments:
    """Adam's two moments, with bias correction (arXiv 1412.6980, algorithm 1)."""

    def __init__(self, layout: TileLayout, spec: LocalAdamWSpec, device: torch.device | str) -> None:
        self._second = SecondMoment(layout, spec.beta2, device)
        self._beta = spec.beta1
        self._flat = torch.zeros(layout.parameters, device=device)
        self._weight = torch.zeros(1)  # the bias correction 1 − β₁ⁿ, as in SecondMoment
        ends = accumulate(tensor.rows * tensor.columns for tensor in layout.tensors)
        self._of = {
            tensor.name: self._flat[end - tensor.rows * tensor.columns : end].view(tensor.shape)
            for tensor, end in zip(layout.tensors, ends, strict=True)
        }

    def begin(self) -> None:
        """Start a new gradient. Its tensors follow through `step`."""
        self._second.begin()
        self._weight.mul_(self._beta).add_(1 - self._beta)

    def step(self, name: str, gradient: Tensor) -> Tensor:
        """Add the gradient of one tensor and return m̂ / (√v̂ + ε) as a new tensor."""
        first = self._of[name]
        first.mul_(self._beta).add_(gradient, alpha=1 - self._beta)
        return self._second.root(name, gradient).reciprocal_().mul_(first).div_(self._weight.item())

    def tensors(self) -> dict[str, Tensor]:
        """All moments by name. Not copies."""
        return {"first": self._flat, "first_weight": self._weight} | self._second.tensors()
