"""All-reduce arms, which exchange every number: AdamW on the gradient of the whole batch, and DiLoCo.

They are charged one ring all-reduce of float32 among the nodes in each round.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench.convergence.arms import Arm
from bench.convergence.method import NodeTraffic, SwarmSize, mean
from bench.convergence.problem import Problem
from thinwire_proto.all_reduce import ring_bytes
from thinwire_proto.contract import ScheduleSpec
from thinwire_proto.exact.schedule import learning_rate

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9  # of DiLoCo, arXiv 2311.08105


class AdamW:
    """torch's AdamW on named tensors, with gradients passed as arguments."""

    def __init__(self, parameters: dict[str, Tensor], beta2: float) -> None:
        self._parameters = [torch.nn.Parameter(tensor) for tensor in parameters.values()]
        for parameter, tensor in zip(self._parameters, parameters.values(), strict=True):
            parameter.data = tensor.data  # shares memory with the tensor
        self._optimizer = torch.optim.AdamW(self._parameters, lr=0.0, betas=(0.9, beta2), weight_decay=0.0)

    def step(self, gradients: dict[str, Tensor], rate: float) -> None:
        for parameter, gradient in zip(self._parameters, gradients.values(), strict=True):
            parameter.grad = gradient
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step()


class AllReduceAdamW:
    """AdamW on the gradient of the whole batch."""

    def __init__(self, problem: Problem, arm: Arm, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        self._problem, self._schedule, self._swarm = problem, schedule, swarm
        self._adamw = AdamW(problem.parameters, arm.beta)

    def round(self, step: int, first: int) -> tuple[float, NodeTraffic]:
        loss, gradients = self._problem.gradients(first, self._swarm.samples)
        self._adamw.step(gradients, learning_rate(self._schedule, step))
        return loss, all_reduce_traffic(self._problem, self._swarm.nodes)


class DiLoCo:
    """DiLoCo (arXiv 2311.08105): H local AdamW steps a round, then an all-reduce of the difference.

    The mean difference is the gradient of an outer SGD with Nesterov momentum.
    """

    def __init__(self, problem: Problem, arm: Arm, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        self._problem, self._schedule, self._swarm, self._steps = problem, schedule, swarm, arm.local_steps
        self._shared = {name: tensor.detach().clone() for name, tensor in problem.parameters.items()}
        self._local = [
            {name: tensor.clone() for name, tensor in self._shared.items()} for _ in range(swarm.nodes)
        ]  # fmt: skip
        self._adamw = [AdamW(local, arm.beta) for local in self._local]
        outer = [torch.nn.Parameter(tensor) for tensor in self._shared.values()]
        for parameter, tensor in zip(outer, self._shared.values(), strict=True):
            parameter.data = tensor
        self._outer = outer
        momentum = OUTER_MOMENTUM
        self._sgd = torch.optim.SGD(outer, lr=OUTER_RATE, momentum=momentum, nesterov=True)

    def round(self, step: int, first: int) -> tuple[float, NodeTraffic]:
        losses = []
        for number, (local, adamw) in enumerate(zip(self._local, self._adamw, strict=True)):
            for name, tensor in local.items():
                tensor.copy_(self._shared[name])
            self._problem.put(local)
            for inner in range(self._steps):
                position = first + inner * self._swarm.samples + number * self._swarm.share
                loss, gradients = self._problem.gradients(position, self._swarm.share)
                adamw.step(gradients, learning_rate(self._schedule, step + inner))
                losses.append(loss)
        with torch.no_grad():
            for name, parameter in zip(self._shared, self._outer, strict=True):
                averaged = torch.stack([local[name] for local in self._local]).mean(0)
                parameter.grad = parameter.data - averaged
        self._sgd.step()
        self._problem.put(self._shared)
        return mean(losses), all_reduce_traffic(self._problem, self._swarm.nodes)


def all_reduce_traffic(problem: Problem, nodes: int) -> NodeTraffic:
    """Traffic of one node in one all-reduce of all parameters."""
    each_way = ring_bytes(nodes) / 2 * sum(tensor.numel() for tensor in problem.parameters.values())
    return NodeTraffic(each_way, each_way)
