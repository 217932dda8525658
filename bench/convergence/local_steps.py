"""DiLoCo and MuLoCo: H local steps of AdamW or Muon on each node, then an all-reduce of the differences.

The mean difference is the gradient of an outer SGD with Nesterov momentum (arXiv 2311.08105). A round is charged one
ring all-reduce of float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench.convergence.all_reduce import all_reduce_traffic, make_optimizer
from bench.convergence.arms import Arm
from bench.convergence.method import NodeTraffic, SwarmSize, mean
from bench.convergence.problem import Problem
from thinwire_proto.contract import ScheduleSpec
from thinwire_proto.exact.schedule import learning_rate

Tensors = dict[str, Tensor]


class LocalSteps:
    """The nodes' parameters and optimizers, which keep their state from round to round. shared: what a round begins
    from."""

    def __init__(self, problem: Problem, arm: Arm, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        self._problem, self._schedule, self._swarm, self._steps = problem, schedule, swarm, arm.local_steps
        self.shared = {name: tensor.detach().clone() for name, tensor in problem.parameters.items()}
        self._local = [{name: tensor.clone() for name, tensor in self.shared.items()} for _ in range(swarm.nodes)]
        self._optimizers = [make_optimizer(arm, local) for local in self._local]

    def take(self, step: int, first: int) -> tuple[float, list[Tensors]]:
        """Take H steps on each node from the shared parameters; the mean loss, and each node's descent, shared − own,
        which is valid until the next call."""
        losses = []
        for number, (local, optimizer) in enumerate(zip(self._local, self._optimizers, strict=True)):
            for name, tensor in local.items():
                tensor.copy_(self.shared[name])
            self._problem.put(local)
            for inner in range(self._steps):
                position = first + inner * self._swarm.samples + number * self._swarm.share
                loss, gradients = self._problem.gradients(position, self._swarm.share)
                optimizer.step(gradients, learning_rate(self._schedule, step + inner))
                losses.append(loss)
        self._problem.put(self.shared)
        with torch.no_grad():
            descents = [{name: self.shared[name] - own for name, own in local.items()} for local in self._local]
        return mean(losses), descents


class DiLoCo:
    """DiLoCo, and MuLoCo if the arm's optimizer is Muon."""

    def __init__(self, problem: Problem, arm: Arm, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        self._problem, self._nodes = problem, swarm.nodes
        self._local = LocalSteps(problem, arm, schedule, swarm)
        self._outer = [torch.nn.Parameter(tensor) for tensor in self._local.shared.values()]
        for parameter, tensor in zip(self._outer, self._local.shared.values(), strict=True):
            parameter.data = tensor
        self._sgd = torch.optim.SGD(self._outer, lr=arm.outer, momentum=arm.outer_momentum, nesterov=True)

    def round(self, step: int, first: int) -> tuple[float, NodeTraffic]:
        loss, descents = self._local.take(step, first)
        for name, parameter in zip(self._local.shared, self._outer, strict=True):
            parameter.grad = torch.stack([descent[name] for descent in descents]).mean(0)
        self._sgd.step()
        return loss, all_reduce_traffic(self._problem, self._nodes)
