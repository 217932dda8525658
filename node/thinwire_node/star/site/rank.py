"""A rank's part of each job of a node, whether it holds the whole model (`whole`) or a range (`sharded`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor

from thinwire.compression.sent import Sent
from thinwire.compression.tile_range import moved
from thinwire_node.star.site.shares import Shares
from thinwire_node.star.trainer import Trainer
from thinwire_node.training.compute import Compute
from thinwire_node.training.device import memory_bytes
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.tiles import TileLayout
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
