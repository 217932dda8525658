"""Muon on flat parameters: matrices take its steps, and all other tensors those of AdamW.

A matrix has a momentum and no second moment, so a node keeps 4 bytes a parameter for it, in place of AdamW's 8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from thinwire_node.gossip.rules.own_steps import check_saved
from thinwire_node.rules import RULES
from thinwire_node.training.adam_moments import AdamMoments
from thinwire_proto.contract import ADAM_BETAS, Contract
from thinwire_proto.contract.rules.muon import MuonSpec
from thinwire_proto.exact.tiles import TileLayout, layout_of
from thinwire_proto.muon import muon_step


@RULES.register("muon")
class Muon:
    """Steps of Muon, with η·λ for the decay of all parameters."""

    def __init__(self, contract: Contract, layout: TileLayout) -> None:
        rule = contract.rule
        assert isinstance(rule, MuonSpec)
        self._rule, self._layout = rule, layout
        of_matrices = layout_of(tuple(one for one in contract.parameters if rule.takes(one)))
        others = layout_of(tuple(one for one in contract.parameters if not rule.takes(one)))
        self._momentum = torch.zeros(of_matrices.parameters)
        self._of_matrix = of_matrices.unflattened(self._momentum)
        self._moments = AdamMoments(others, *ADAM_BETAS, "cpu")
        self.steps = 0

    @torch.no_grad()
    def step(self, x: Tensor, gradient: Tensor, rate: float, weight_decay: float) -> float:
        self.steps += 1
        self._moments.begin()
        x.mul_(1 - rate * weight_decay)
        parameters, square = self._layout.unflattened(x), 0.0
        for name, one in self._layout.unflattened(gradient).items():
            step = self._step_of(name, one).mul_(rate)
            parameters[name].sub_(step)
            square += float(step.norm()) ** 2
        return math.sqrt(square)

    def _step_of(self, name: str, gradient: Tensor) -> Tensor:
        if name in self._of_matrix:
            return muon_step(self._of_matrix[name], gradient, self._rule.momentum)
        return self._moments.step(name, gradient).mul_(self._rule.adamw_rate)

    def tensors(self) -> dict[str, Tensor]:
        return {"momentum": self._momentum} | self._moments.tensors()

    def load(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        own = self.tensors()
        check_saved(tensors, own)
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        self.steps = steps
