"""The dense arms, which exchange every number: AdamW and Muon on the gradient of the whole batch.

They are charged one ring all-reduce of float32 among the nodes in each step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from bench.convergence.arms import Arm
from bench.convergence.method import NodeTraffic, SwarmSize
from bench.convergence.problem import Problem
from thinwire_node.training.adam_moments import AdamMoments
from thinwire_proto.all_reduce import ring_bytes
from thinwire_proto.contract import ADAM_BETAS, Parameter, ScheduleSpec
from thinwire_proto.contract.rules.muon import MuonSpec
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.muon import muon_step

StepOf = Callable[[Tensor, Tensor, float], Tensor]


class Optimizer(Protocol):
    """Steps on the named tensors that it was made with."""

    def step(self, gradients: Mapping[str, Tensor], rate: float) -> None: ...


class AdamW:
    """torch's AdamW on named tensors, with gradients passed as arguments."""

    def __init__(self, parameters: Mapping[str, Tensor], beta2: float) -> None:
        self._parameters = [torch.nn.Parameter(tensor) for tensor in parameters.values()]
        for parameter, tensor in zip(self._parameters, parameters.values(), strict=True):
            parameter.data = tensor.data  # shares memory with the tensor
        self._optimizer = torch.optim.AdamW(self._parameters, lr=0.0, betas=(0.9, beta2), weight_decay=0.0)

    def step(self, gradients: Mapping[str, Tensor], rate: float) -> None:
        for parameter, gradient in zip(self._parameters, gradients.values(), strict=True):
            parameter.grad = gradient
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step()


class GroupedMuon:
    """Muon on named tensors, with gradients passed as arguments. Embeddings and vectors take steps of AdamW, as in
    `MuonSpec`.

    Matrices of equal shape are one tensor, [matrices, rows, columns], so that a few launches take all of them. groups:
    their names by shape. others: the names of all else. step_of: a step at η = 1 from momentum, gradient and decay.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], step_of: StepOf = muon_step, rule: MuonSpec | None = None
    ) -> None:
        self._parameters, self._rule, self._step_of = parameters, rule or MuonSpec(), step_of
        of_all = [Parameter(name=name, shape=tuple(one.shape)) for name, one in parameters.items()]
        self.groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for one in of_all:
            if self._rule.takes(one):
                self.groups[one.shape].append(one.name)
        others = tuple(one for one in of_all if not self._rule.takes(one))
        self.others = [one.name for one in others]
        device = next(iter(parameters.values())).device
        self._moments = AdamMoments(layout_of(others), *ADAM_BETAS, device)
        self._momentum = {shape: torch.zeros(len(names), *shape, device=device) for shape, names in self.groups.items()}

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], rate: float) -> None:
        for shape, names in self.groups.items():
            self.step_group(shape, torch.stack([gradients[name] for name in names]), rate)
        self.step_others(gradients, rate)

    def step_group(self, shape: tuple[int, ...], gradient: Tensor, rate: float) -> None:
        """Step on the matrices of a shape. gradient: [matrices, rows, columns]."""
        moved = self._step_of(self._momentum[shape], gradient, self._rule.momentum).mul_(rate)
        for name, change in zip(self.groups[shape], moved, strict=True):
            self._parameters[name].sub_(change)

    def step_others(self, gradients: Mapping[str, Tensor], rate: float) -> None:
        self._moments.begin()
        for name in self.others:
            self._parameters[name].sub_(self._moments.step(name, gradients[name]), alpha=rate * self._rule.adamw_rate)


def make_optimizer(arm: Arm, parameters: Mapping[str, Tensor]) -> Optimizer:
    """The arm's optimizer, of dense gradients or of local steps."""
    if arm.momentum:
        return GroupedMuon(parameters, rule=MuonSpec(adamw_rate=arm.adamw_rate))
    return AdamW(parameters, arm.beta)


class AllReduce:
    """The arm's optimizer on the gradient of the whole batch."""

    def __init__(self, problem: Problem, arm: Arm, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        self._problem, self._schedule, self._swarm = problem, schedule, swarm
        self._optimizer = make_optimizer(arm, problem.parameters)

    def round(self, step: int, first: int) -> tuple[float, NodeTraffic]:
        loss, gradients = self._problem.gradients(first, self._swarm.samples)
        self._optimizer.step(gradients, learning_rate(self._schedule, step))
        return loss, all_reduce_traffic(self._problem, self._swarm.nodes)

    def grow(self, schedule: ScheduleSpec, swarm: SwarmSize, times: int) -> None:
        self._schedule, self._swarm = schedule, swarm


def all_reduce_traffic(problem: Problem, nodes: int) -> NodeTraffic:
    """Traffic of one node in one all-reduce of all parameters."""
    each_way = ring_bytes(nodes) / 2 * sum(tensor.numel() for tensor in problem.parameters.values())
    return NodeTraffic(each_way, each_way)
