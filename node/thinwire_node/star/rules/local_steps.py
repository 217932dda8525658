"""The base of rules with local steps: each micro-batch is a step on the node's own parameters θ_local.

At the extraction, the difference θ_base − θ_local is added to a buffer e of everything that was not sent yet: the error
feedback (arXiv 2508.15706, 2510.03371).

    offset = θ_local − θ_base               0 after each extraction
    offset ← offset − η·step                each micro-batch
    e ← β·e − offset                        at the extraction, which then takes the largest components of e

docs/local-rules.md explains the design.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from thinwire.compression.sent import Sent
from thinwire_node.star.rules.rule import Device, Rule, Tensors
from thinwire_proto.contract import Contract
from thinwire_proto.exact.tiles import TileLayout


class LocalSteps(Rule):
    """Steps on the node's own parameters. A rule says what a step is, and which tensors outlast a round."""

    offset: dict[str, Tensor]

    def __init__(self, contract: Contract, layout: TileLayout, device: Device, moments_on: Device) -> None:
        super().__init__(contract, layout, moments_on)
        self.offset = {tensor.name: torch.zeros(tensor.shape, device=device) for tensor in layout.tensors}

    @abstractmethod
    def _begin(self) -> None:
        """Start a new gradient. Its tensors follow through `_step`."""

    @abstractmethod
    def _step(self, name: str, gradient: Tensor) -> Tensor:
        """Learn from the gradient of one tensor. Returns the step at η = 1, as a new tensor."""

    @torch.no_grad()
    def learn(self, parameters: Tensors, gradients: Tensors | None, samples: int, rate: float) -> None:
        assert gradients is not None
        self._begin()
        for name, offset in self.offset.items():
            step = self._step(name, gradients[name])
            offset.sub_(step, alpha=rate)
            parameters[name].sub_(step, alpha=rate)

    def extract(self, k: int, rate: float) -> Sent:
        sent = self.momentum.accumulate_and_extract(self.offset, -1.0, 1, k)
        self.clear()
        return sent

    def clear(self) -> None:
        for offset in self.offset.values():
            offset.zero_()
