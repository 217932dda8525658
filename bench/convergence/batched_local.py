"""Local steps of Muon for a card: all nodes at once, each with its own parameters.

The sketch of `bench.convergence.batched`, for nodes that have parameters, moments and momenta of their own: each tensor
of the model is there as often as there are nodes, [nodes, *shape]. The merge is the coordinator's own, on the CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bench.convergence.arms import Arm
from bench.convergence.compressed import make_contract
from bench.convergence.method import NodeTraffic, SwarmSize, mean
from bench.convergence.problem import Problem
from bench.convergence.stacked import StackedLayout
from thinwire_node.compression.momentum import Momentum
from thinwire_node.compression.sent import WholeSent
from thinwire_node.training.rules.adam_moments import AdamMoments
from thinwire_node.training.rules.local_muon import add_outer
from thinwire_proto.contract import LocalMuonSpec, Parameter, ScheduleSpec
from thinwire_proto.exact.magnitudes import merger_of
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Votes, WholeVotes
from thinwire_proto.muon import muon_step
from thinwire_proto.wire.codec import encode_votes
from thinwire_proto.wire.sign_form import encode_smaller


def can_be_batched(arm: Arm) -> bool:
    """Whether an arm's nodes take local steps of Muon and send all components."""
    return isinstance(arm.rule, LocalMuonSpec) and arm.demo.sends_whole_tiles


class BatchedMuonMethod:
    """The same rule as `compressed.LocalStepsMethod`, for all nodes at once.

    The votes of one node in turn are encoded, and their bytes stand for those of every node in that round.
    """

    def __init__(self, problem: Problem, arm: Arm, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        """Raises ValueError unless the arm `can_be_batched`."""
        if not can_be_batched(arm):
            raise ValueError("only nodes with local steps of Muon that send all components are trained at once here")
        assert isinstance(arm.rule, LocalMuonSpec)
        self._problem, self._schedule, self._swarm, self._steps = problem, schedule, swarm, arm.local_steps
        self._contract, self._rule = make_contract(problem, arm, schedule), arm.rule
        tensors = {name: tensor.data for name, tensor in problem.parameters.items()}
        self._replica = Replica(self._contract, tensors, 0, b"")
        problem.put(self._replica.tensors)
        device, nodes, parameters = problem.device, swarm.nodes, self._contract.parameters
        self._local, self._offset, self._outer = (
            {one.name: torch.zeros(nodes, *one.shape, device=device) for one in parameters} for _ in range(3)
        )
        self._inner = {one.name: torch.zeros_like(self._local[one.name]) for one in parameters if arm.rule.takes(one)}
        others = [one for one in parameters if not arm.rule.takes(one)]
        of_all = layout_of(tuple(Parameter(name=one.name, shape=(nodes, *one.shape)) for one in others))
        self._moments = AdamMoments(of_all, arm.rule.beta1, arm.rule.beta2, device)
        self._stacked = StackedLayout(self._replica.layout, nodes, device)
        self._momentum = Momentum(self._stacked.whole, self._contract.demo, device)

    def round(self, step: int, first: int) -> tuple[float, NodeTraffic]:
        swarm, losses = self._swarm, []
        for name, local in self._local.items():
            local.copy_(self._replica.tensors[name])
            self._offset[name].zero_()
        for inner in range(self._steps):
            position = first + inner * swarm.samples
            loss, gradients = self._problem.gradients_of_shares(position, swarm.nodes, swarm.share, self._local)
            self._learn(gradients, learning_rate(self._schedule, step + inner))
            losses.append(loss)
        each = self._extract()
        replica, layout, demo = self._replica, self._replica.layout, self._contract.demo
        merger = merger_of(self._contract, layout, replica.step)
        for votes in each:
            merger.add(votes, 1)
        update = Update(replica.step, learning_rate(self._schedule, step), 1.0, merger.merged())
        own = encode_votes(each[replica.step % swarm.nodes], layout)
        replica.apply(update, b"")
        return mean(losses), NodeTraffic(float(len(own)), float(len(encode_smaller(update, layout, demo)[0])))

    @torch.no_grad()
    def _learn(self, gradients: dict[str, Tensor], rate: float) -> None:
        self._moments.begin()
        for name, gradient in gradients.items():
            if name in self._inner:
                step = muon_step(self._inner[name], gradient, self._rule.momentum)
            else:
                step = self._moments.step(name, gradient).mul_(self._rule.adamw_rate)
            step.add_(self._local[name], alpha=self._rule.weight_decay)
            self._offset[name].sub_(step, alpha=rate)
            self._local[name].sub_(step, alpha=rate)

    @torch.no_grad()
    def _extract(self) -> list[Votes]:
        """The votes of each node."""
        for name, offset in self._offset.items():
            add_outer(self._outer[name], offset, self._rule.outer_momentum)
        sent = self._momentum.accumulate_and_extract(
            self._stacked.stacked(self._offset), -1.0, 1, self._contract.demo.k
        )
        assert isinstance(sent, WholeSent)
        assert sent.codes is not None
        has_votes = sent.sizes > 0
        codes = torch.zeros_like(has_votes, dtype=torch.uint8)
        codes[has_votes] = sent.codes
        signs, codes, has_votes = (self._stacked.of_each(of_all).cpu() for of_all in (sent.signs, codes, has_votes))
        return [
            WholeVotes(signs[node].numpy(), codes[node][has_votes[node]].numpy()) for node in range(self._swarm.nodes)
        ]
