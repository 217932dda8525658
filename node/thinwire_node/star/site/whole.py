"""A rank that holds the whole model, because it computes with it. The momentum is divided by ranges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thinwire.compression.sent import Sent
from thinwire_node.star.site.rank import HandedOut, Rank, RankTrainer
from thinwire_node.star.site.shares import RangeMomentum, SharedReplica, Shares
from thinwire_node.training.compute import Compute
from thinwire_node.training.failures import Interrupted, NotFinite
from thinwire_node.training.gradient_receiver import Tensors
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_node.training.ranks import Ranks
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import Replica
from thinwire_proto.task import Batch

SAMPLES_OF_A_STEP = 1 << 30
"""More than any step has."""


class JointCompute:
    """A compute whose gradients are the means over the samples of all ranks, for a rule that needs each gradient: all
    ranks then take the same step."""

    def __init__(self, compute: Compute, ranks: Ranks) -> None:
        self._compute = compute
        self._ranks = ranks
        self.device = compute.device
        self.use, self.loss = compute.use, compute.loss
        self.interrupt, self.resume = compute.interrupt, compute.resume
        self.micro_batch, self.weight = compute.micro_batch, compute.weight
        self.weight_of_step = 0
        """The weight of the newest gradients, over all ranks."""

    @property
    def parameters(self) -> Tensors:
        return self._compute.parameters

    def gradients(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        samples, is_interrupted, is_spoilt = len(batch[0]), False, False
        weight = self.weight(batch) if samples else 0
        loss, found = torch.zeros(()), {name: torch.zeros_like(p) for name, p in self.parameters.items()}

        def add(piece: Batch, sums: Tensors | None) -> None:
            nonlocal loss
            share = self.weight(piece) / weight
            of_piece, gradients = self._compute.gradients(piece)
            loss = loss + of_piece.cpu() * share
            for name, gradient in gradients.items():
                found[name].add_(gradient, alpha=share)

        try:
            if samples:
                self._compute.micro_batch.in_pieces(batch, None, add)
        except Interrupted:
            is_interrupted = True
        except NotFinite:
            is_spoilt, loss = True, torch.zeros(())
        sums = torch.tensor([weight, float(loss) * weight, is_interrupted, is_spoilt], dtype=torch.float64)
        self._ranks.add_up(sums)
        total, loss_sum, is_interrupted, is_spoilt = sums.tolist()
        if is_interrupted:
            raise Interrupted
        if is_spoilt:
            raise NotFinite
        self.weight_of_step = int(total)
        means = {name: found[name].mul_(weight / total).contiguous() for name in self.parameters}  # the same order
        for mean in means.values():
            self._ranks.add_up(mean)
        return torch.tensor(loss_sum / total), means

    def add_gradients(self, batch: Batch, sums: Tensors, weight: int) -> Tensor:
        return self._compute.add_gradients(batch, sums, weight)


class WholeTrainer(RankTrainer):
    """A trainer that looks ahead in its range, with the others."""

    def __init__(
        self, contract: Contract, data: HandedOut, replica: Replica, compute: JointCompute, shares: Shares
    ) -> None:
        super().__init__(contract, data, replica, compute)
        self._handed_out = data
        self._joint = compute
        self._shares = shares
        has_sums = self.rule.sums is not None
        cut = shares.add_up if has_sums else shares.own.cut
        self.rule.momentum = RangeMomentum(shares, contract.demo, compute.device, cut, adds_up=has_sums)

    def _step_ahead(self, base: Tensors, into: Tensors, sent: Sent, step: int) -> None:
        own = self._shares.own
        before = own.cut(base)
        after = torch.empty_like(before)
        super()._step_ahead(own.layout.unflattened(before), own.layout.unflattened(after), sent, step)
        self._shares.share(after, into)

    def _samples_of(self, batch: Batch) -> int:
        return len(batch[0]) if self.rule.sums is not None else self._handed_out.samples

    def _weight_of_step(self, batch: Batch) -> int:
        return self._joint.weight_of_step


class WholeRank(Rank):
    """compute: of this rank alone."""

    def __init__(self, contract: Contract, compute: Compute, replica: SharedReplica) -> None:
        data, shares = HandedOut(), replica.shares
        self._compute = JointCompute(compute, shares.ranks)
        super().__init__(shares, replica, WholeTrainer(contract, data, replica, self._compute, shares), data)
        if self.is_joint:  # all ranks take a step together, so each divides its own share inside of it
            self._compute.micro_batch = MicroBatch(SAMPLES_OF_A_STEP)

    @property
    def is_joint(self) -> bool:
        return self.trainer.rule.sums is None

    @property
    def divided(self) -> dict[str, Tensor]:
        return self.trainer.rule.momentum.tensors()

    def micro_batch(self, batch: Batch) -> dict[str, Any]:
        samples, rank, size = len(batch[0]), self.shares.ranks.rank, self.shares.ranks.size
        own = slice(samples * rank // size, samples * (rank + 1) // size)
        self._data.share, self._data.samples = tuple(tensor[own] for tensor in batch), samples
        count = samples if self.is_joint else own.stop - own.start
        interrupted = False
        if rank:
            self._compute.resume()  # the leader tells no job while it is interrupted itself
        try:
            if count:
                self.trainer.micro_batch(range(count))
        except Interrupted:
            interrupted = True
        return self.trainer.counts | {"interrupted": interrupted}
