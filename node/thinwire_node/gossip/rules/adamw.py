"""AdamW on flat parameters, with moments that can be saved and continued to the bit.

`torch.optim.AdamW` would keep a state for each of its parameters, and saves it by pickle. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from thinwire_node.gossip.rules.own_steps import check_saved
from thinwire_node.rules import RULES
from thinwire_proto.contract import ADAM_BETAS, Contract
from thinwire_proto.exact.tiles import TileLayout

EPSILON = 1e-8


class AdamW:
    """Steps of AdamW (arXiv 1711.05101, algorithm 2, with η·λ for the decay, as torch has it).

    first, second: the moments, float32 [parameters], on the CPU, as x is. steps: those taken so far."""

    def __init__(self, parameters: int, beta1: float, beta2: float) -> None:
        self._beta1 = beta1
        self._beta2 = beta2
        self.first = torch.zeros(parameters)
        self.second = torch.zeros(parameters)
        self.steps = 0

    @torch.no_grad()
    def step(self, x: Tensor, gradient: Tensor, rate: float, weight_decay: float) -> float:
        self.steps += 1
        self.first.lerp_(gradient, 1 - self._beta1)
        self.second.mul_(self._beta2).addcmul_(gradient, gradient, value=1 - self._beta2)
        corrected = (1 - self._beta2**self.steps) ** 0.5
        root = torch.sqrt(self.second, out=gradient).div_(corrected).add_(EPSILON)
        step = torch.div(self.first, root, out=root).mul_(rate / (1 - self._beta1**self.steps))
        x.mul_(1 - rate * weight_decay).sub_(step)
        return float(step.norm())

    def tensors(self) -> dict[str, Tensor]:
        return {"first moment": self.first, "second moment": self.second}

    def load(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        check_saved(tensors, self.tensors())
        self.first, self.second, self.steps = tensors["first moment"], tensors["second moment"], steps


@RULES.register("adamw")
def make(contract: Contract, layout: TileLayout) -> AdamW:
    return AdamW(layout.parameters, *ADAM_BETAS)
