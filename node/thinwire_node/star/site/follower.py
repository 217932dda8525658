"""The loop of a follower: it does its part of what the leader tells, until the leader says that it is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thinwire_node.kinds import FOLLOWERS
from thinwire_node.star.site import messages
from thinwire_node.star.site.rank import Rank
from thinwire_node.star.site.sharded import ShardedRank, ShardReplica
from thinwire_node.star.site.sharded_compute import ShardedCompute
from thinwire_node.star.site.shares import SharedReplica, Shares
from thinwire_node.star.site.whole import WholeRank
from thinwire_node.training.compute import Compute, TorchCompute
from thinwire_node.training.device import choose_apply_device
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_node.training.ranks import BEGIN, END, Message, Ranks
from thinwire_proto.blobs import BlobFolder, BlobMissing, Blobs
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.task import task_of

Job = Callable[[Any, dict[str, Any], list[Tensor]], Any]


@FOLLOWERS.register("star")
def follow(ranks: Ranks, device: torch.device) -> None:
    """Work until the leader ends the node. Raises RankLost."""
    Follower(ranks, device).run()


class Follower:
    """A follower, once the leader has begun a star run."""

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self._ranks = ranks
        self._device = device
        self._compute: Compute | None = None
        self._rank: Rank | None = None
        ranks.on_interrupt(self._interrupt)

    def _interrupt(self) -> None:
        if self._compute is not None:
            self._compute.interrupt()

    def run(self) -> None:
        while True:
            head, tensors = self._ranks.hear()
            if head["job"] == END:
                return
            if head["job"] == BEGIN:  # another run, of which the one before became a branch
                self._rank = self._compute = None
                continue
            if head["job"] == "adopt":
                self._adopt(head, tensors)
                continue
            if head["job"] == "amend":
                self._amend(head)
                continue
            assert self._rank is not None
            answer = JOBS[head["job"]](self._rank, head, tensors)
            if head["job"] in ANSWERED:
                self._ranks.answer(*answer)

    def _adopt(self, head: dict[str, Any], tensors: list[Tensor]) -> None:
        contract = messages.unpack_contract(head["contract"])
        apply_device, _ = choose_apply_device(contract.demo, self._device, contract.rule)
        base = messages.unpack_base(head)
        blobs = BlobFolder(base.folder)
        self._ranks.answer({"apply": apply_device.type, "lacks": _lacks(contract, blobs)})
        if head["is_sharded"]:
            self._adopt_shard(contract, head, apply_device)
            return
        names = [one.name for one in (*contract.parameters, *contract.moments)]
        named = {name: tensor.to(apply_device) for name, tensor in zip(names, tensors, strict=True)}
        replica = Replica(contract, named, head["step"], bytes.fromhex(head["head"]), is_checked=True)
        if self._rank is None:
            shares = _shares(contract, self._ranks)
            task = task_of(contract.model) if base.bits is None else task_of(contract.model).in_bits(base.bits)
            self._compute = TorchCompute(task, self._device, blobs, _at_once(head))
            self._rank = WholeRank(contract, self._compute, SharedReplica(replica, shares))
        else:
            self._rank.adopt(SharedReplica(replica, self._rank.shares))

    def _amend(self, head: dict[str, Any]) -> None:
        assert self._compute is not None
        assert self._rank is not None
        samples, checkpoints = head["at_once"]
        self._compute.micro_batch.fit(samples, checkpoints=checkpoints)
        self._rank.trainer.amend(messages.unpack_contract(head["contract"]))

    def _adopt_shard(self, contract: Contract, head: dict[str, Any], apply_device: torch.device) -> None:
        shares = self._rank.shares if self._rank is not None else _shares(contract, self._ranks)
        flat = self._ranks.take((shares.own.layout.parameters,)).to(apply_device)
        replica = ShardReplica(contract, flat, head["step"], bytes.fromhex(head["head"]), shares)
        if self._rank is None:
            compute = ShardedCompute(task_of(contract.model), self._device, shares, _at_once(head))
            self._compute, self._rank = compute, ShardedRank(contract, compute, replica)
        else:
            self._rank.adopt(replica)


def _at_once(head: dict[str, Any]) -> MicroBatch:
    samples, checkpoints = head["at_once"]
    return MicroBatch(samples, checkpoints=checkpoints)


def _shares(contract: Contract, ranks: Ranks) -> Shares:
    return Shares(layout_of(contract.parameters), ranks, contract.rule)


def _lacks(contract: Contract, blobs: Blobs) -> str:
    """Why this host does not have the files of the model's base, or an empty text."""
    try:
        for blob in task_of(contract.model).blobs():
            blobs.path(blob)
    except BlobMissing as error:
        return str(error)
    return ""


def _extract(rank: Rank, head: dict[str, Any], tensors: list[Tensor]) -> Message:
    about, found = messages.pack_sent(rank.extract(head["k"]))
    return {"sent": about}, found


def _load(rank: Rank, head: dict[str, Any], tensors: list[Tensor]) -> None:
    own = {name: rank.shares.ranks.take(tensor.shape) for name, tensor in rank.divided.items()}
    rank.trainer.rule.load(own | dict(zip(head["kept"], tensors, strict=True)))


JOBS: dict[str, Job] = {
    "apply": lambda rank, head, tensors: rank.replica.apply(
        messages.unpack_update(head["update"], tensors), bytes.fromhex(head["head"])
    ),
    "clear": lambda rank, head, tensors: rank.trainer.clear(),
    "extract": _extract,
    "fingerprint": lambda rank, head, tensors: ({"fingerprint": rank.replica.share_of_fingerprint(head["nonce"])}, []),
    "forget": lambda rank, head, tensors: rank.trainer.rule.forget(),
    "hand_over": lambda rank, head, tensors: rank.shares.hand_over(rank.replica.flat),
    "keep": lambda rank, head, tensors: rank.replica.keep(),
    "load": _load,
    "loss": lambda rank, head, tensors: rank.loss(tuple(tensors), is_newest=head["is_newest"]),
    "micro_batch": lambda rank, head, tensors: (rank.micro_batch(tuple(tensors)), []),
    "put_back": lambda rank, head, tensors: rank.put_back(messages.unpack_sent(head["sent"], tensors)),
    "refresh": lambda rank, head, tensors: rank.refresh(messages.unpack_all_sent(head, tensors)),
    "state": lambda rank, head, tensors: ({}, list(rank.divided.values())),
}
"""The jobs that the leader gives, by name. A job of ANSWERED returns its answer to the leader."""
ANSWERED = frozenset({"extract", "fingerprint", "micro_batch", "state"})
