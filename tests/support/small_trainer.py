"""The trainer of a star run, with a small model."""

from __future__ import annotations

import torch

from support.small import small_corpus
from thinwire_node.star.trainer import Trainer
from thinwire_node.training.compute import TorchCompute
from thinwire_proto.contract import Contract
from thinwire_proto.data.text import CorpusText
from thinwire_proto.exact.replica import Replica
from thinwire_proto.task import task_of

CPU = torch.device("cpu")


def small_trainer(contract: Contract, replica: Replica, device: torch.device = CPU) -> Trainer:
    compute = TorchCompute(task_of(contract.model), device)
    return Trainer(contract, CorpusText(small_corpus(), contract), replica, compute)
