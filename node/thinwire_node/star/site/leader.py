"""The leader: what its `Work` talks to in place of a trainer, a rule and a replica. Each job goes to all ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from thinwire.compression.sent import Sent
from thinwire.compression.tile_range import joined
from thinwire_node.report import RankView
from thinwire_node.star.rules import Rule
from thinwire_node.star.site import messages
from thinwire_node.star.site.rank import Rank
from thinwire_node.star.site.sharded import ShardedRank, ShardReplica
from thinwire_node.star.site.sharded_compute import ShardedCompute
from thinwire_node.star.site.shares import DividedReplica, SharedReplica, Shares
from thinwire_node.star.site.whole import WholeRank
from thinwire_node.training.compute import Compute
from thinwire_node.training.failures import Interrupted
from thinwire_node.training.ranks import BEGIN
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.mapped import scratch
from thinwire_proto.exact.mix64 import MASK
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.update import Update
from thinwire_proto.task import DataSource


class Led(DividedReplica):
    """A replica of the leader, which tells all ranks what to do with it."""

    def fingerprint(self, nonce: int) -> int:
        ranks = self.shares.ranks
        with ranks.order({"job": "fingerprint", "nonce": nonce}):
            found = [self.share_of_fingerprint(nonce)]
            found += [head["fingerprint"] for head, _ in ranks.answers()]
        return sum(found) & MASK

    def apply(self, update: Update, head: bytes) -> None:
        if update.step != self.step:
            super().apply(update, head)  # raises, before anybody is told
        about, tensors = messages.pack_update(update)
        with self.shares.ranks.order({"job": "apply", "update": about, "head": head.hex()}, tensors):
            super().apply(update, head)


class ShardedLeaderReplica(Led, ShardReplica):
    """The leader's range of a replica that no rank holds whole.

    replica: the whole one, whose values are read until they are handed out. device: that applies updates."""

    def __init__(self, replica: Replica, shares: Shares, device: torch.device) -> None:
        flat = shares.own.cut(replica.tensors).to(device)
        super().__init__(replica.contract, flat, replica.step, replica.head, shares)
        self._whole: Mapping[str, Tensor] = replica.tensors

    def hand_out(self) -> None:
        for rank in self.shares.ranks.others:
            self.shares.ranks.give(rank, self.shares.ranges[rank].cut(self._whole))
        self._whole = {}

    def model_fingerprint(self) -> int:
        return self.fingerprint(0)  # there are no moments

    def copied(self) -> dict[str, Tensor]:
        with self.shares.ranks.order({"job": "keep"}):
            return dict(self.keep())

    def save(self, path: Path) -> None:
        whole = scratch({one.name: one.shape for one in self.contract.parameters}, path.parent)
        with self.shares.ranks.order({"job": "hand_over"}):
            self.shares.collect(self.flat, whole)
        Replica(self.contract, whole, self.step, self.head, is_checked=True).save(path)


class LeaderReplica(Led, SharedReplica):
    """The leader's replica, of which each rank holds the whole."""


class LeaderRule:
    """The local rule of all ranks, as far as `Work` needs it. folder: for files that go when they have been read."""

    def __init__(self, rank: Rank, folder: Path) -> None:
        self._rank = rank
        self._folder = folder
        self._shares = rank.shares
        self._ranks = rank.shares.ranks

    @property
    def _rule(self) -> Rule:
        return self._rank.trainer.rule

    def put_back(self, sent: Sent) -> None:
        about, tensors = messages.pack_sent(sent)
        with self._ranks.order({"job": "put_back", "sent": about}, tensors):
            self._rank.put_back(sent)

    def forget(self) -> None:
        with self._ranks.order({"job": "forget"}):
            self._rule.forget()

    def state(self) -> dict[str, Tensor]:
        """The state as a node of one process has it: what all ranks hold alike is the leader's. Raises OSError."""
        own, ranks = self._rank.divided, self._ranks
        whole = self._shares.whole_state(own, self._folder)  # first: a full disk must not break the ranks apart
        self._shares.put_state(own, ranks.rank, whole)
        with ranks.order({"job": "state"}):
            for rank in ranks.others:
                _, tensors = ranks.answer_of(rank)
                self._shares.put_state(dict(zip(own, tensors, strict=True)), rank, whole)
                del tensors  # before the next one's come
        return whole | self._kept(self._rule.state())

    def load(self, state: Mapping[str, Tensor]) -> None:
        """state: as a node of one process, or one of any number of ranks, has saved it."""
        kept = self._kept(state)
        whole = {name: tensor for name, tensor in state.items() if name not in kept}
        with self._ranks.order({"job": "load", "kept": list(kept)}, list(kept.values())):
            for rank in self._ranks.others:
                for name in self._rank.divided:
                    self._ranks.give(rank, self._shares.cut_state(name, whole[name], rank))
            own = {name: self._shares.cut_state(name, tensor, self._ranks.rank) for name, tensor in whole.items()}
            self._rule.load(own | kept)

    def _kept(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that each rank has whole."""
        return {name: tensor for name, tensor in state.items() if name not in self._rank.divided}


class LeaderTrainer:
    """Trains on all ranks: see `thinwire_node.star.work.Computes`. The counts are those of all ranks together."""

    def __init__(
        self,
        contract: Contract,
        data: DataSource,
        replica: LeaderReplica | ShardedLeaderReplica,
        compute: Compute,
        folder: Path,
        base: messages.Base = messages.NO_BASE,
    ) -> None:
        """compute: of the leader. folder: see `LeaderRule`. base: of which it has made its model."""
        self._ranks = replica.shares.ranks
        self._contract = contract
        self._data = data
        self._compute = compute
        self._base = base
        self._replica = replica
        self._ranks.tell({"job": BEGIN, "kind": contract.exchange.kind})
        self._tell_replica(replica)
        self._rank = self._make_rank(replica)
        self.rule = LeaderRule(self._rank, folder)
        self.compute_s = 0.0
        self.ranks: list[RankView] = []
        """All ranks, as of the newest micro-batch."""
        self._reset()

    def _reset(self) -> None:
        self.samples = self.dropped = 0
        self.base_step: int | None = None
        self._loss_sum = 0.0
        self._weight = 0

    @property
    def replica(self) -> Replica:
        return self._replica

    def _make_rank(self, replica: LeaderReplica | ShardedLeaderReplica) -> Rank:
        if isinstance(replica, LeaderReplica):
            return WholeRank(self._contract, self._compute, replica)
        assert isinstance(self._compute, ShardedCompute)
        return ShardedRank(self._contract, self._compute, replica)

    def _tell_replica(self, replica: LeaderReplica | ShardedLeaderReplica) -> None:
        is_sharded = isinstance(replica, ShardedLeaderReplica)
        about = {"step": replica.step, "head": replica.head.hex(), "contract": messages.pack_contract(self._contract)}
        whole = [] if is_sharded else list(replica.state.values())
        about |= {"is_sharded": is_sharded, "at_once": messages.pack_at_once(self._compute.micro_batch)}
        about |= messages.pack_base(self._base)
        self._ranks.tell({"job": "adopt", **about}, whole)
        for number, (head, _) in enumerate(self._ranks.answers(), 1):
            if lacking := head["lacks"]:
                self._ranks.is_broken = True
                raise ConfigError(
                    f"process {number} of this node finds no base of the model in {self._base.folder} ({lacking}): let "
                    "all hosts of the node share --state-dir"
                )
            if head["apply"] != replica.device.type:
                self._ranks.is_broken = True
                raise ConfigError(
                    f"process 0 of this node applies updates on {replica.device.type}, but process {number} on "
                    f"{head['apply']}: name devices of one kind in --device"
                )
        if isinstance(replica, ShardedLeaderReplica):
            replica.hand_out()

    def adopt(self, replica: Replica) -> None:
        assert isinstance(replica, LeaderReplica | ShardedLeaderReplica)
        self._tell_replica(replica)
        self._replica = replica
        self._rank.adopt(replica)

    def amend(self, contract: Contract) -> None:
        self._contract = contract
        at_once = messages.pack_at_once(self._compute.micro_batch)
        with self._ranks.order({"job": "amend", "contract": messages.pack_contract(contract), "at_once": at_once}):
            self._rank.trainer.amend(contract)

    def refresh(self, out: Sequence[Sent] = ()) -> None:
        about, tensors = messages.pack_all_sent(out)
        with self._ranks.order({"job": "refresh", **about}, tensors):
            self._rank.refresh(out)

    def micro_batch(self, positions: Sequence[int]) -> None:
        """Divide a micro-batch by samples, and train each rank on its own. Raises Interrupted."""
        began = time.perf_counter()
        batch = self._data.batch(positions)
        with self._ranks.order({"job": "micro_batch"}, batch):
            counts = [self._rank.micro_batch(batch)] + [head for head, _ in self._ranks.answers()]
        self.compute_s += time.perf_counter() - began
        self.ranks = [RankView(one["compute_s"], one["memory_bytes"]) for one in counts]
        if self._rank.is_joint:
            counts = counts[:1]
        self.samples, self.dropped = (sum(one[name] for one in counts) for name in ("samples", "dropped"))
        self._loss_sum, self._weight = (sum(one[name] for one in counts) for name in ("loss_sum", "weight"))
        self.base_step = min((one["base_step"] for one in counts if one["base_step"] is not None), default=None)
        if any(one["interrupted"] for one in counts):
            raise Interrupted

    def held_out_loss(self, tensors: Mapping[str, Tensor], name: str, samples: Sequence[int]) -> float:
        """Of a rank that holds the whole model, the leader's alone: it has the data, and the parameters of a step that
        the others have left."""
        batch, rank = self._data.held_out(name, samples), self._rank
        if not isinstance(rank, ShardedRank):
            return self._compute.loss(tensors, batch)
        is_newest = tensors is self._replica.tensors
        with self._ranks.order({"job": "loss", "is_newest": is_newest}, batch):
            found = rank.loss(batch, is_newest=is_newest)
        if found["interrupted"]:
            raise Interrupted
        return float(found["loss"])

    def extract(self, k: int) -> tuple[Sent, int, float]:
        with self._ranks.order({"job": "extract", "k": k}):
            packed = [messages.pack_sent(self._rank.extract(k))]
            packed += [(head["sent"], found) for head, found in self._ranks.answers()]
        sent = joined([messages.unpack_sent(about, [tensor.cpu() for tensor in tensors]) for about, tensors in packed])
        samples, loss = self.samples, self._loss_sum / self._weight
        self._reset()
        return sent, samples, loss

    def clear(self) -> None:
        with self._ranks.order({"job": "clear"}):
            self._rank.trainer.clear()
        self._reset()

    def interrupt(self) -> None:
        self._compute.interrupt()
        self._ranks.interrupt()

    def resume(self) -> None:
        self._compute.resume()  # the others' goes on with their next micro-batch
