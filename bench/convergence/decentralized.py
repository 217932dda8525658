"""Arms in a gossip run: each node steps by itself and exchanges differences with its peers (docs/decentralized.md).

All nodes are in one process, and iterations are in step. A copy that both ends hold is computed once, since both are
equal. The bytes are those of the encoded differences. `problem.parameters` is the mean model after each round; `node`
is a single one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench.convergence.arms import Arm
from bench.convergence.method import NodeTraffic, SwarmSize, mean
from bench.convergence.problem import Problem
from thinwire import Muon
from thinwire.steps.muon import grouped
from thinwire_proto.contract import Parameter, ScheduleSpec
from thinwire_proto.contract.rules.muon import MuonSpec
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.codec import make_codec, tensors_of
from thinwire_proto.gossip.copies import pull
from thinwire_proto.gossip.message import PublicCopy
from thinwire_proto.gossip.mixing import Mixing
from thinwire_proto.gossip.topology import Layout, make_topology


class GossipMethod:
    """x_i ← x_i + Σ w_ij·(h_ji − h_ij) − u_i, with the optimizer's step u at the parameters before mixing."""

    def __init__(self, problem: Problem, arm: Arm, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        self._problem, self._schedule, self._swarm, self._arm = problem, schedule, swarm, arm
        shapes = [Parameter(name=name, shape=tuple(tensor.shape)) for name, tensor in problem.parameters.items()]
        self._layout, self._shapes = TileLayout(shapes), shapes
        self._codec = make_codec(arm.codec, self._layout)
        self._topology = make_topology("one-peer-exponential", Layout(swarm.nodes))
        self._start = torch.cat([tensor.detach().reshape(-1) for tensor in problem.parameters.values()])
        self._x = [self._start.clone() for _ in range(swarm.nodes)]
        self._mean = self._start.clone()
        self._leaves = [self._leaves_of(x) for x in self._x]
        self._optimizers = [self._optimizer(leaves) for leaves in self._leaves]
        self._copies: dict[tuple[int, int], PublicCopy] = {}
        problem.put(self._named(self._mean))

    def round(self, step: int, first: int) -> tuple[float, NodeTraffic]:
        mixing, share = self._topology.at(step), self._swarm.share
        pulled = [self._pulled(node) for node in range(self._swarm.nodes)] if self._arm.pull else self._x
        sent = self._send(mixing)
        losses = [self._step(node, at, step, first + node * share) for node, at in enumerate(pulled)]
        self._mix(mixing)
        self._mean.copy_(torch.stack(self._x).mean(0))
        self._problem.put(self._named(self._mean))
        each = sent / self._swarm.nodes
        return mean(losses), NodeTraffic(each, each)

    def single_node_loss(self, samples: int) -> float:
        """Held-out loss of node 0's own parameters."""
        self._problem.put(self._named(self._x[0]))
        loss = self._problem.held_out_loss(samples)
        self._problem.put(self._named(self._mean))
        return loss

    def _send(self, mixing: Mixing) -> int:
        """Send the parameters as they are now. Returns the bytes of all nodes."""
        sent = 0
        for node, target in arcs_of(mixing):
            if (node, target) not in self._copies:
                self._copies[node, target] = PublicCopy(self._layout, self._start)
            copy = self._copies[node, target]
            body = self._codec.encode(self._x[node] - copy.flat)
            copy.advance(self._codec.decode(body, copy.flat.device))
            sent += len(body)
        return sent

    def _pulled(self, node: int) -> Tensor:
        """Where a node computes its gradient: before the messages of this iteration come."""
        x, copies = self._x[node], sorted(self._copies.items())
        return pull(x, [copy.flat for (_, to), copy in copies if to == node], self._arm.pull, torch.empty_like(x))

    def _mix(self, mixing: Mixing) -> None:
        """Mix what was sent, into parameters that have stepped since."""
        for node, peer in arcs_of(mixing):
            difference = self._copies[peer, node].flat - self._copies[node, peer].flat
            self._x[node].add_(difference.mul_(mixing.rows[node][peer]))

    def _leaves_of(self, x: Tensor) -> list[torch.nn.Parameter]:
        """The parameters that an optimizer steps on, in the manifest's order. They share the memory of x."""
        parameters = [torch.nn.Parameter(tensor) for tensor in tensors_of(x, self._layout)]
        for parameter, tensor in zip(parameters, tensors_of(x, self._layout), strict=True):
            parameter.data = tensor
        return parameters

    def _optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        betas = (0.9, self._arm.beta)
        if self._arm.momentum:
            of_muon = map(MuonSpec().takes, self._shapes)
            groups = grouped(zip(parameters, of_muon, strict=True))
            return Muon(groups, lr=0.0, momentum=self._arm.momentum, betas=betas)
        return torch.optim.AdamW(parameters, lr=0.0, betas=betas, weight_decay=0.0)

    def _step(self, node: int, at: Tensor, step: int, first: int) -> float:
        """A step on a node's parameters. at: where its gradient is computed."""
        optimizer, share = self._optimizers[node], self._swarm.share
        self._problem.put(self._named(at))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(self._schedule, step)
        loss, gradients = self._problem.gradients(first, share)
        for parameter, gradient in zip(self._leaves[node], gradients.values(), strict=True):
            parameter.grad = gradient
        optimizer.step()
        return loss

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        return dict(zip(self._problem.parameters, tensors_of(flat, self._layout), strict=True))


def arcs_of(mixing: Mixing) -> list[tuple[int, int]]:
    """(source, target) of all messages of an iteration."""
    return [(node, target) for node in range(len(mixing.rows)) for target in mixing.targets(node)]
