"""The method of a swarm for a card: all nodes at once.

The problem: a small model keeps a card busy for microseconds an operation, and launching the operation takes longer.
Node by node, a round of 64 nodes launches 64 times as many as a round of one.

The sketch: the gradients of all nodes come from one pass. One `Momentum` holds all nodes: its layout has the model's
tensors, each as often as there are nodes, one below the other, padded to whole tiles. So the compressor processes all
nodes' tiles in one launch, and a table says to which node, and to which of the model's tiles, a tile belongs. The merge
adds up integers, and its selection compares integers, so both are exact on any device.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from bench.convergence.arms import Arm
from bench.convergence.compressed import make_contract
from bench.convergence.method import NodeTraffic, SwarmSize
from bench.convergence.problem import Problem
from bench.convergence.stacked import StackedLayout
from thinwire.compression.momentum import Momentum
from thinwire.compression.sent import Sent
from thinwire_proto.contract import WEIGHT_SUM_MAX, ScheduleSpec
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, MATRIX_SHIFT, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.exact.topk import TopkSelection, topk_selection
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Merged, Votes
from thinwire_proto.wire.codec import encode_update, encode_votes


class DeviceMerge:
    """The sum of a round's votes on their device, and the selection of what an update contains.

    components: of the model's layout, of all nodes' votes. positive: the sign of each. selection: see
    `thinwire_proto.exact.topk`; None to keep all. The result equals that of `thinwire_proto.exact.votes.merge` and
    `dropped_by_update`.
    """

    def __init__(
        self, components: Tensor, positive: Tensor, layout: TileLayout, selection: TopkSelection | None
    ) -> None:
        self._layout = layout
        ones = positive.to(torch.int32).mul_(2).sub_(1)
        self._sum = torch.zeros(layout.components, dtype=torch.int32, device=ones.device)
        self._sum.index_add_(0, components, ones)
        self._kept = self._sum != 0
        self._full = torch.zeros_like(self._kept)  # for each component, whether its tile has all it may have
        if selection is not None:
            self._select(selection)

    def _select(self, selection: TopkSelection) -> None:
        device, layout = self._sum.device, self._layout
        ranks, offsets = (
            torch.from_numpy(drawn).to(device) for drawn in selection.drawn(np.arange(layout.tiles, dtype=np.int64))
        )
        edges = (0, layout.matrix_components, layout.components)
        of_tile = (offsets[: layout.matrix_tiles], offsets[layout.matrix_tiles :])
        for (start, end), offset, size in zip(
            pairwise(edges), of_tile, (MATRIX_COMPONENTS, VECTOR_COMPONENTS), strict=True
        ):
            votes, kept = (whole[start:end].view(-1, size) for whole in (self._sum, self._kept))
            kept_max = min(selection.update_topk, size)
            if not len(votes):
                continue
            number = (ranks[:size] + offset[:, None]) % MATRIX_COMPONENTS
            # unlike in `topk`, strong is large here, so that cancelled votes come last
            strength = (votes.abs().to(torch.int64) << MATRIX_SHIFT) + (MATRIX_COMPONENTS - 1 - number)
            positions = strength.topk(kept_max, dim=1, sorted=False).indices
            kept &= torch.zeros_like(kept).scatter_(1, positions, True)
            self._full[start:end].view(-1, size)[:] = (kept.sum(1) >= kept_max)[:, None]

    def merged(self) -> Merged:
        components = self._kept.nonzero().view(-1)
        return Merged(components.cpu().numpy(), self._sum[components].to(torch.int16).cpu().numpy())

    def dropped(self, components: Tensor) -> Tensor:
        """Mask of votes that the update dropped; components: of the model's layout."""
        return (self._full & ~self._kept)[components]


class BatchedVotingMethod:
    """The same rule as `compressed.SwarmMethod`, for all nodes at once.

    The votes of one node in turn are encoded, and their bytes stand for those of every node in that round, and of all
    rounds until the next that is counted.
    """

    counted_every = 1
    """Rounds between two whose bytes are counted."""

    def __init__(self, problem: Problem, arm: Arm, schedule: ScheduleSpec, swarm: SwarmSize) -> None:
        """Raises ValueError for an arm with magnitudes, whose merge is another, and for too many nodes."""
        if arm.demo.magnitude == "tile" or swarm.nodes > WEIGHT_SUM_MAX:
            raise ValueError(f"votes have no magnitudes here, and there are at most {WEIGHT_SUM_MAX} nodes")
        self._problem, self._schedule, self._swarm = problem, schedule, swarm
        self._k = arm.demo.k
        contract = make_contract(problem, arm, schedule)
        self._replica = Replica(contract, {name: tensor.data for name, tensor in problem.parameters.items()}, 0, b"")
        problem.put(self._replica.tensors)
        self._stacked = StackedLayout(self._replica.layout, swarm.nodes, problem.device)
        self._momentum = Momentum(self._stacked.whole, contract.demo, problem.device)
        self._traffic = NodeTraffic(0.0, 0.0)

    def round(self, step: int, first: int) -> tuple[float, NodeTraffic]:
        rate, swarm, replica = learning_rate(self._schedule, step), self._swarm, self._replica
        loss, gradients = self._problem.gradients_of_shares(first, swarm.nodes, swarm.share)
        sent = self._momentum.accumulate_and_extract(self._stacked.stacked(gradients), rate, 1, self._k)
        node, components = self._stacked.owners(sent.components)
        positive, number = sent.values > 0, replica.step
        selection = topk_selection(replica.contract.demo, replica.layout, number)
        merge = DeviceMerge(components, positive, replica.layout, selection)
        if selection is not None:
            dropped = torch.where(merge.dropped(components), sent.values, 0.0)
            self._momentum.put_back(Sent(sent.components, dropped, sent.extraction))
        update = Update(number, rate, decay(self._schedule, step), merge.merged())
        replica.apply(update, b"")
        if number % self.counted_every == 0:
            own = node == number % swarm.nodes
            votes = Votes(components[own].cpu().numpy(), positive[own].cpu().numpy())
            down = encode_update(update, replica.layout)
            self._traffic = NodeTraffic(float(len(encode_votes(votes, replica.layout))), float(len(down)))
        return loss, self._traffic
