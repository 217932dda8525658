"""What the coordinator holds of the round that is open, and what it has counted so far."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from thinwire_coordinator.swarm.sealing import Accepted
from thinwire_proto.exact.votes import Merges
from thinwire_proto.wire.service_pb2 import Receipt


@dataclass
class OpenRound:
    """A round from its announcement until its receipts are given."""

    number: int
    step: int
    opened: float
    deadline: float
    k: int
    merger: Merges
    accepted: dict[str, Accepted] = field(default_factory=dict)
    arrived_us: dict[bytes, int] = field(default_factory=dict)
    receipts: dict[bytes, asyncio.Future[Receipt]] = field(default_factory=dict)
    """By the contribution's hash, from the moment at which it has arrived whole."""
    arriving: set[str] = field(default_factory=set)  # sessions whose contribution is on its way in: one at a time

    def answer(self, name: bytes, receipt: Receipt) -> None:
        """Give the receipt of a contribution that has arrived whole."""
        receipt.arrived_us = self.arrived_us[name]
        self.receipts[name].set_result(receipt)
