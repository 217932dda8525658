"""Two nodes in this process that train a model of any kind with the real trainer, codec, merge and replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from thinwire_node.star.trainer import Trainer
from thinwire_node.training.compute import TorchCompute
from thinwire_proto.blobs import Blobs
from thinwire_proto.contract import Contract
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate, to_float32
from thinwire_proto.exact.update import Update
from thinwire_proto.task import NO_BLOBS, Batch, DataSource, HeldOutSet, task_of
from thinwire_proto.wire.codec import decode_update, decode_votes, encode_update, encode_votes

SAMPLES = 4
SEEN = 24
"""The tokens of `Counting` are below this."""


class Counting(DataSource):
    """Sequences of `length` + 1 tokens that count upwards, and begin anew after `SEEN`."""

    def __init__(self, length: int) -> None:
        self._length = length

    def batch(self, positions: Sequence[int]) -> Batch:
        return ((torch.tensor(list(positions))[:, None] * 7 + torch.arange(self._length + 1)) % SEEN,)

    def held_out_sets(self) -> tuple[HeldOutSet, ...]:
        return (HeldOutSet("counting", 8),)

    def held_out(self, name: str, samples: Sequence[int]) -> Batch:
        return self.batch(samples)

    def describe(self) -> str:
        return "numbers that count upwards"


class TwoNodes:
    """computes, trainers: of each node. updates: those that both applied. losses: the mean of each round."""

    def __init__(
        self, contract: Contract, data: DataSource, first: Mapping[str, Tensor], blobs: Blobs = NO_BLOBS
    ) -> None:
        self._contract = contract
        self.computes = [TorchCompute(task_of(contract.model), torch.device("cpu"), blobs) for _ in range(2)]
        self.first = {name: tensor.clone() for name, tensor in first.items()}
        self.trainers = [Trainer(contract, data, self.replica(), compute) for compute in self.computes]
        self.updates: list[Update] = []
        self.losses: list[float] = []

    def replica(self) -> Replica:
        """A replica at the first state."""
        return Replica(self._contract, {name: tensor.clone() for name, tensor in self.first.items()}, 0, b"")

    def train(self, rounds: int) -> None:
        for _ in range(rounds):
            self._round(len(self.updates))

    def _round(self, step: int) -> None:
        contract, layout = self._contract, self.trainers[0].replica.layout
        merger, losses = merger_of(contract, layout, step), []
        demo = contract.demo
        for number, trainer in enumerate(self.trainers):
            begin = (2 * step + number) * SAMPLES
            with torch.random.fork_rng(devices=[]):  # dropout must not depend on the tests that ran before
                torch.manual_seed(begin)
                trainer.micro_batch(range(begin, begin + SAMPLES))
            sent, _, loss = trainer.extract(demo.k)
            payload = encode_votes(sent.votes(), layout)
            whole, levels = demo.sends_whole_tiles, demo.vote_levels
            merger.add(decode_votes(payload, layout, demo.k, demo.magnitude, whole=whole, levels=levels), 1)
            losses.append(loss)
        rate = to_float32(learning_rate(contract.schedule, step))
        update = Update(step, rate, decay(contract.schedule, step), merger.merged())
        self.updates.append(decode_update(encode_update(update, layout), layout, demo.magnitude, demo.update_levels))
        self.losses.append(sum(losses) / len(losses))
        for trainer in self.trainers:
            trainer.replica.apply(self.updates[-1], b"")
            trainer.refresh()

    def check_exact(self) -> None:
        """Both replicas, and one that replays the updates, have the same bits, and they are finite."""
        replayed = self.replica()
        for update in self.updates:
            replayed.apply(replace(update), b"")
        hashes = {replica.state_hash() for replica in [replayed, *(trainer.replica for trainer in self.trainers)]}
        assert len(hashes) == 1
        assert all(tensor.isfinite().all() for tensor in replayed.tensors.values())
