"""A rank that holds its range alone: of the parameters, of the sums of gradients and of the momentum."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from thinwire_node.star.site.rank import HandedOut, Rank, RankTrainer
from thinwire_node.star.site.sharded_compute import ShardedCompute, counting
from thinwire_node.star.site.shares import DividedReplica, RangeMomentum, Shares
from thinwire_node.training.failures import Interrupted
from thinwire_node.training.gradient_receiver import Tensors
from thinwire_proto.contract import Contract
from thinwire_proto.exact.apply import flush_subnormals
from thinwire_proto.exact.fingerprint import fingerprint_of_pieces
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.update import Update
from thinwire_proto.task import Batch


class ShardReplica(DividedReplica):
    """The range of one rank, as a replica whose parameters are the range's tensors.

    flat: of the range, on the device that applies updates; subnormal values become zero."""

    def __init__(self, contract: Contract, flat: Tensor, step: int, head: bytes, shares: Shares) -> None:
        flush_subnormals(flat)
        self.contract, self.step, self.head = contract, step, head
        self.shares = shares
        self.flat = flat
        self.tensors = shares.own.layout.unflattened(flat)
        self.moments = {}
        self.kept: Tensors = {}
        """The parameters of a step that the replica has left; empty if none were kept."""
        self._frozen = weakref.WeakSet()

    @property
    def device(self) -> torch.device:
        return self.flat.device

    def share_of_fingerprint(self, nonce: int) -> int:
        return fingerprint_of_pieces(self.shares.own.pieces(self.flat), nonce)

    def keep(self) -> Tensors:
        """Keep the parameters as they are now, in place of those that were kept before."""
        self.kept = {}
        self.kept = super().copied()
        return self.kept

    def _change(self, update: Update) -> None:
        self._change_range(self.tensors, update)


class ShardedTrainer(RankTrainer):
    """A trainer whose tensors are those of the range of one rank."""

    def __init__(self, contract: Contract, data: HandedOut, replica: ShardReplica, compute: ShardedCompute) -> None:
        shares = replica.shares
        super().__init__(contract, data, replica, compute, shares.own.layout)
        self._sharded = compute
        if self.rule.sums is not None:
            self.rule.momentum = RangeMomentum(shares, contract.demo, compute.device)

    def _train(self, batch: Batch, sums: Tensors | None) -> None:
        """batch: see `counting`."""
        step, (samples, count), gradients = self.replica.step, counting(batch), None
        weight = self._compute.weight(samples) if count else 0
        if sums is not None:
            loss = self._compute.add_gradients(samples, sums, weight)
        else:
            loss, gradients = self._sharded.gradients(samples, weight)
        self.rule.learn(self._compute.parameters, gradients, weight, learning_rate(self._contract.schedule, step))
        self.base_step = step if self.base_step is None else min(step, self.base_step)
        self.samples += count
        self._weight += weight
        self._loss_sum += loss.item() * weight


class ShardedRank(Rank):
    """A rank that holds its range alone."""

    def __init__(self, contract: Contract, compute: ShardedCompute, replica: ShardReplica) -> None:
        data = HandedOut()
        self._compute = compute
        super().__init__(replica.shares, replica, ShardedTrainer(contract, data, replica, compute), data)

    @property
    def divided(self) -> dict[str, Tensor]:
        return self.trainer.rule.state()

    def micro_batch(self, batch: Batch) -> dict[str, Any]:
        self._data.share = self._share_of(batch)
        interrupted = False
        try:
            self.trainer.micro_batch(range(len(self._data.share[-1])))
        except Interrupted:
            interrupted = True
        is_leader = self.shares.ranks.rank == 0
        return self.trainer.counts | {
            "dropped": self.trainer.dropped if is_leader else 0,  # all ranks drop the same
            "interrupted": interrupted,
        }

    def _share_of(self, batch: Batch) -> Batch:
        """This rank's samples, as `counting` takes them. All ranks have equally many: a sample that does not count
        stands in for a missing one."""
        samples, rank, size = len(batch[0]), self.shares.ranks.rank, self.shares.ranks.size
        most = -(-samples // size)
        first, stop = samples * rank // size, samples * (rank + 1) // size
        places = torch.arange(first, first + most)
        counts = places < stop
        places[~counts] = 0
        return (*(tensor[places] for tensor in batch), counts)

    def loss(self, batch: Batch, *, is_newest: bool) -> dict[str, Any]:
        """The mean loss of held-out samples, of which each rank measures its share, and whether it was interrupted.
        is_newest: with the newest parameters, not with those that were kept."""
        replica = self.replica
        assert isinstance(replica, ShardReplica)
        try:
            loss = self._compute.loss(replica.tensors if is_newest else replica.kept, self._share_of(batch))
        except Interrupted:
            return {"interrupted": True}
        return {"loss": loss, "interrupted": False}
