"""What the arms do with a batch: each method's step, and the bytes that its node sends and is sent.

A method has the swarm in one process. What travels is really encoded, by the codec that swarms use, so that its bytes
are counted and not estimated; dense methods are charged what a ring all-reduce of float32 sends and receives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from deploy.science.arms import Settings
from deploy.science.problem import Problem
from thinwire_node.momentum import Momentum, Sent
from thinwire_node.published import Published
from thinwire_proto.codec import Update, encode_update, encode_votes
from thinwire_proto.contract import Contract, DataSpec
from thinwire_proto.models import build, manifest
from thinwire_proto.replica import Replica
from thinwire_proto.schedule import decay, learning_rate
from thinwire_proto.votes import merge

DENSE_BYTES = 8.0
"""A parameter and exchange, sent plus received, of a ring all-reduce of float32 between many nodes."""


@dataclass(frozen=True)
class Bytes:
    """What one node sent and was sent in a round."""

    up: float
    down: float


class Method(Protocol):
    """One round: from the batch at position `first` on to the next parameters. Returns the mean training loss."""

    def round(self, step: int, first: int) -> tuple[float, Bytes]: ...
