"""The arm with one-way edges: push-sum instead of differences between two copies (docs/decentralized.md)."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.convergence.arms import Arm
from bench.convergence.decentralized import GossipMethod, arcs_of
from bench.convergence.method import SwarmSize
from bench.convergence.problem import Problem
from thinwire_proto.contract import ScheduleSpec
from thinwire_proto.gossip.mixing import Mixing
from thinwire_proto.gossip.push_sum import Incoming, Outgoing, Push, PushSumNode


class PushMethod(GossipMethod):
    """x_i ← (Σ_j w_ij·s_j) / (Σ_j w_ij·w_j) − u_i, with mass s, weight w, and AdamW's step u at the parameters before
    mixing."""

    topology = "directed-exponential"

    def __init__(self, problem: Problem, arm: Arm, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        super().__init__(problem, arm, schedule, swarm)
        self._nodes = [PushSumNode(x) for x in self._x]
        arcs = {arc for mixing in self._topology.mixings for arc in arcs_of(mixing)}
        self._outgoing = {arc: Outgoing(len(self._start), self._start.device) for arc in arcs}
        self._incoming = {arc: Incoming() for arc in arcs}
        self._under_way: dict[tuple[int, int], Push] = {}
        self._before: list[Tensor] = []

    def _send(self, mixing: Mixing) -> int:
        for number, node in enumerate(self._nodes):
            node.share([self._outgoing[number, target] for target in mixing.targets(number)])
        self._under_way = {arc: self._outgoing[arc].push(self._codec) for arc in arcs_of(mixing)}
        self._before = [x.clone() for x in self._x]
        return sum(len(push.body) for push in self._under_way.values())

    def _mix(self, mixing: Mixing) -> None:
        for arc, push in self._under_way.items():
            self._incoming[arc].receive(push, self._codec, self._nodes[arc[1]])
        for node, x, before in zip(self._nodes, self._x, self._before, strict=True):
            node.step(before - x)
            x.copy_(node.x)

    def _mean_model(self) -> Tensor:
        weights = torch.tensor([float(node.weight) for node in self._nodes], device=self._start.device)
        return torch.einsum("n,np->p", weights / weights.sum(), torch.stack(self._x))
