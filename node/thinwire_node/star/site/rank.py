"""A rank's part of each job of a node.

`WholeRank` holds the whole model, because it computes with it, and divides the momentum by ranges. `ShardedRank` holds
its range alone: of the parameters, of the sums of gradients and of the momentum."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from thinwire.compression.sent import Sent
from thinwire.compression.tile_range import moved
from thinwire_node.star.site.sharded_compute import ShardedCompute, counting
from thinwire_node.star.site.shares import DividedReplica, RangeMomentum, SharedReplica, Shares
from thinwire_node.star.trainer import Trainer
from thinwire_node.training.compute import Compute
from thinwire_node.training.device import memory_bytes
from thinwire_node.training.failures import Interrupted, NotFinite
from thinwire_node.training.gradient_receiver import Tensors
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_node.training.ranks import Ranks
from thinwire_proto.contract import Contract, Parameter
from thinwire_proto.exact.apply import flush_subnormals
from thinwire_proto.exact.fingerprint import fingerprint_of_pieces
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.update import Update
from thinwire_proto.task import Batch, DataSource


class HandedOut:
    """A rank's share of the micro-batch that the leader has read."""

    share: Batch = ()
    samples = 0
    """The number in the whole micro-batch."""

    def batch(self, positions: Sequence[int]) -> Batch:
        return self.share


class RankTrainer(Trainer):
    """The trainer of one rank."""

    def __init__(
        self, contract: Contract, data: HandedOut, replica: Replica, compute: Compute, layout: TileLayout | None = None
    ) -> None:
        """layout: of what the rule holds; None: of the whole model."""
        super().__init__(contract, cast(DataSource, data), replica, compute, layout=layout)

    def extract_share(self, k: int) -> Sent:
        """Extract from the own range. Other than `extract`, it does not need a sample."""
        sent = self.rule.extract(k, learning_rate(self._contract.schedule, self.replica.step))
        self._begin_anew()
        return sent

    @property
    def counts(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "dropped": self.dropped,
            "base_step": self.base_step,
            "loss_sum": self._loss_sum,
            "weight": self._weight,
            "compute_s": self.compute_s,
            "memory_bytes": memory_bytes(str(self._compute.device))[0],
        }


class Rank(ABC):
    """A rank: the state that it holds, and its part of each job. All ranks must do the same jobs in the same order."""

    def __init__(self, shares: Shares, replica: Replica, trainer: RankTrainer, data: HandedOut) -> None:
        self.shares = shares
        self.replica = replica
        self.trainer = trainer
        self._data = data

    @property
    def is_joint(self) -> bool:
        """Whether the counts of each rank are those of all ranks together."""
        return False

    @property
    @abstractmethod
    def divided(self) -> dict[str, Tensor]:
        """The tensors of the rule's state of which each rank holds its range, by name, not copied."""

    @abstractmethod
    def micro_batch(self, batch: Batch) -> dict[str, Any]:
        """Train on this rank's samples of a micro-batch. Returns the counts since the last extraction."""

    def extract(self, k: int) -> Sent:
        return moved(self.trainer.extract_share(k), self.shares.own)

    def refresh(self, out: Sequence[Sent]) -> None:
        self.trainer.refresh([self.shares.own.of_sent(sent) for sent in out])

    def put_back(self, sent: Sent) -> None:
        self.trainer.rule.put_back(self.shares.own.of_sent(sent))

    def adopt(self, replica: Replica) -> None:
        self.replica = replica
        self.trainer.adopt(replica)


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
        parameters = tuple(Parameter(name=one.name, shape=one.shape) for one in shares.own.layout.tensors)
        of_range = contract.model_copy(update={"parameters": parameters})  # of which the rule makes its moments
        super().__init__(of_range, data, replica, compute, shares.own.layout)
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
