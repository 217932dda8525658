"""Local steps of Muon for a card: all nodes at once, each with its own parameters.

The sketch of `bench.convergence.batched`, for nodes that have parameters, moments and momenta of their own: each tensor
of the model is there as often as there are nodes, [nodes, *shape].
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from bench.convergence.arms import Arm
from bench.convergence.compressed import make_contract
from bench.convergence.method import NodeTraffic, SwarmSize, mean
from bench.convergence.problem import Problem
from bench.convergence.stacked import StackedLayout
from thinwire.compression.momentum import Momentum
from thinwire.compression.sent import WholeSent
from thinwire_node.star.rules.local_muon import add_outer
from thinwire_node.training.adam_moments import AdamMoments
from thinwire_proto.contract import ADAM_BETAS, Contract, LocalMuonSpec, Parameter, ScheduleSpec, VotingRuleSpec
from thinwire_proto.exact.decode import level_factor
from thinwire_proto.exact.magnitudes import TABLE, UNIT, gain, rounded
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout, layout_of
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Levels, WholeVotes
from thinwire_proto.muon import muon_step
from thinwire_proto.wire.codec import encode_update, encode_votes


def can_be_batched(arm: Arm) -> bool:
    """Whether an arm's nodes take local steps of Muon and send all components."""
    return isinstance(arm.rule, LocalMuonSpec) and arm.demo.sends_whole_tiles


def merged_levels(signs: Tensor, codes: Tensor, has_votes: Tensor, contract: Contract, layout: TileLayout) -> Levels:
    """The update of all nodes' signs and median sizes in levels, on their device, with integers. It equals that of
    `thinwire_proto.exact.aggregation.SizedMerger` for votes of weight 1.

    signs: int8 [nodes, components]. codes: uint8 [nodes, tiles], of those that has_votes, bool [nodes, tiles].
    """
    nodes, levels = len(signs), contract.demo.update_levels
    table = torch.from_numpy(TABLE).to(signs.device)
    voted = has_votes.sum(0)
    in_order = torch.where(has_votes, codes.to(torch.int64), len(TABLE)).sort(0).values
    median = in_order.gather(0, ((voted + 1) // 2 - 1).clamp_(min=0)[None])[0]
    sizes = torch.where(voted > 0, table[median.clamp_(max=len(TABLE) - 1)], 0)
    by_majority = 2 * voted >= nodes
    largest_size = torch.where(by_majority, sizes, 0).max()
    sizes = torch.where(by_majority, sizes, sizes.minimum(largest_size))
    values = torch.zeros(layout.components, dtype=torch.int8, device=signs.device)
    largest = torch.zeros(layout.tiles, dtype=torch.int64, device=signs.device)
    edges, tiles = (0, layout.matrix_components, layout.components), (0, layout.matrix_tiles, layout.tiles)
    for (start, end), (first, last), size in zip(
        pairwise(edges), pairwise(tiles), (MATRIX_COMPONENTS, VECTOR_COMPONENTS), strict=True
    ):
        if first == last:
            continue
        sums = signs[:, start:end].sum(0, dtype=torch.int32).view(-1, size)
        most = sums.abs().amax(1, keepdim=True)
        scaled = sums.sign() * ((2 * levels * sums.abs() + most) // (2 * most).clamp(min=1))
        scaled *= (sizes[first:last, None] > 0).to(torch.int32)
        values[start:end] = scaled.to(torch.int8).view(-1)
        largest[first:last] = most[:, 0] * sizes[first:last]
    steps = np.zeros(layout.tiles, np.float64)
    assert isinstance(contract.rule, VotingRuleSpec)
    unit = contract.rule.update_factor * UNIT / (levels * level_factor(levels) * nodes)
    found = largest.cpu().numpy()
    for part, is_matrix in ((slice(tiles[1]), True), (slice(tiles[1], None), False)):
        steps[part] = unit * found[part] / gain(is_matrix=is_matrix)
    return Levels(levels, values.cpu().numpy(), np.where(found > 0, rounded(steps), np.float32(0)))


class BatchedMuonMethod:
    """The same rule as `compressed.SwarmMethod`, for all nodes at once.

    The votes of one node in turn are encoded, and their bytes stand for those of every node in that round, and of all
    rounds until the next that is counted.
    """

    counted_every = 1
    """Rounds between two whose bytes are counted."""

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
        self._moments = AdamMoments(of_all, *ADAM_BETAS, device)
        self._stacked = StackedLayout(self._replica.layout, nodes, device)
        self._momentum = Momentum(self._stacked.whole, self._contract.demo, device)
        self._traffic = NodeTraffic(0.0, 0.0)

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
        signs, codes, has_votes = self._extract()
        replica, layout = self._replica, self._replica.layout
        merged = merged_levels(signs, codes, has_votes, self._contract, layout)
        update = Update(replica.step, learning_rate(self._schedule, step), 1.0, merged)
        if replica.step % self.counted_every == 0:
            node = replica.step % swarm.nodes
            own = WholeVotes(signs[node].cpu().numpy(), codes[node][has_votes[node]].cpu().numpy())
            down = encode_update(update, layout)
            self._traffic = NodeTraffic(float(len(encode_votes(own, layout))), float(len(down)))
        replica.apply(update, b"")
        return mean(losses), self._traffic

    @torch.no_grad()
    def _learn(self, gradients: dict[str, Tensor], rate: float) -> None:
        self._moments.begin()
        for name, gradient in gradients.items():
            if name in self._inner:
                step = muon_step(self._inner[name], gradient, self._rule.momentum)
            else:
                step = self._moments.step(name, gradient).mul_(self._rule.adamw_rate)
            self._offset[name].sub_(step, alpha=rate)
            self._local[name].sub_(step, alpha=rate)

    @torch.no_grad()
    def _extract(self) -> tuple[Tensor, Tensor, Tensor]:
        """The votes of each node: signs, int8 [nodes, components]; codes, uint8 [nodes, tiles]; and which tiles have
        votes."""
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
        signs, codes, has_votes = (self._stacked.of_each(of_all) for of_all in (sent.signs, codes, has_votes))
        return signs, codes, has_votes
