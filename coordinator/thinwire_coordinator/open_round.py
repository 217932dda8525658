"""What the coordinator holds of the round that is open, and what it has counted so far."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from thinwire_coordinator.leases import Lease
from thinwire_coordinator.sealing import Accepted
from thinwire_proto.service_pb2 import Receipt
from thinwire_proto.votes import Merger


@dataclass
class OpenRound:
    """A round from its announcement until its receipts are given."""

    number: int
    step: int
    deadline: float
    nonce: int
    leases: dict[str, Lease]
    fingerprint: asyncio.Future[int]  # of the coordinator's own replica at `step`
    merger: Merger
    accepted: dict[str, Accepted] = field(default_factory=dict)
    receipts: dict[bytes, asyncio.Future[Receipt]] = field(default_factory=dict)
    """By the contribution's hash, from the moment at which it has arrived whole."""
    arriving: set[str] = field(default_factory=set)  # sessions whose contribution is on its way in: one at a time


@dataclass
class Tally:
    """Counts since this process started."""

    tokens: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_fetched: int = 0
    fingerprints_compared: int = 0
    fingerprints_different: int = 0
    loss_training: float | None = None
