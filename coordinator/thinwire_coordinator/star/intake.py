"""Receives the contributions to one round at a time. Every contribution gets a receipt: see `arrival`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from thinwire_coordinator.hall.byte_budget import ByteBudget
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.star.arrival import Arrival, Desk
from thinwire_coordinator.star.checking import Checker
from thinwire_coordinator.star.fingerprints import KnownFingerprints
from thinwire_coordinator.star.open_round import OpenRound
from thinwire_coordinator.star.round.admission import ContributionClaim
from thinwire_coordinator.star.round.contributions import Round
from thinwire_coordinator.star.round.driver import RoundDriver
from thinwire_coordinator.star.round.receipts import Receipt
from thinwire_coordinator.star.trust.observer import Observer
from thinwire_proto.exact.votes import Merges
from thinwire_proto.wire.codec import contribution_bytes_max

ARRIVING_BYTES_MAX = 256 << 20
"""Payloads that arrive or are being checked, together. It is more for contributions of which four would not fit."""
ARRIVING_LEAST = 4


def arriving_bytes_max(nodes_max: int, payload_bytes_max: int) -> int:
    """Bound on the payloads in memory: one of each node if that fits, else ARRIVING_BYTES_MAX."""
    return max(ARRIVING_LEAST * payload_bytes_max, min(nodes_max * payload_bytes_max, ARRIVING_BYTES_MAX))


class Intake:
    """`current` is the round that is open or being sealed."""

    def __init__(self, hall: Hall, driver: RoundDriver, fingerprints: KnownFingerprints, observer: Observer) -> None:
        demo = hall.contract.demo
        largest = contribution_bytes_max(hall.layout, demo.k, demo.magnitude, whole=demo.sends_whole_tiles)
        room = ByteBudget(arriving_bytes_max(hall.contract.round.nodes_max, largest))
        checker = Checker(hall, driver, fingerprints, observer)
        self._desk = Desk(hall, driver, observer, checker, room, largest)
        self._current: OpenRound | None = None

    @property
    def current(self) -> OpenRound | None:
        return self._current

    def open(self, opened: Round, k: int, merger: Merges) -> None:
        """Accept contributions to this round from now on."""
        self._current = OpenRound(opened, k, merger)

    def close(self, receipt: Receipt) -> None:
        """End the round: give this receipt to every accepted contribution."""
        current, self._current = self._current, None
        assert current is not None
        current.close(receipt)

    async def contribute(self, member: Member, claim: ContributionClaim, parts: AsyncIterator[bytes]) -> Receipt:
        """Receive a contribution and return its receipt, which may take until its round is over."""
        self._desk.observer.came(member.node_id)
        return await Arrival(self._desk, member, claim, self._current).run(parts)

    async def ask_receipt(self, name: bytes) -> Receipt | None:
        """Wait for the receipt of a contribution to the current round; None if the round has no such contribution."""
        receipt = self._current.receipt(name) if self._current else None
        return None if receipt is None else await asyncio.shield(receipt)

    def may_be_counted(self, name: bytes) -> bool:
        """Whether a contribution is in the current round, so that its outcome may still be open."""
        return self._current is not None and self._current.receipt(name) is not None

    def may_count_from(self, node: str) -> bool:
        """Whether the current round has a complete contribution of a node that may still be counted."""
        return self._current is not None and self._current.round.has_whole_from(node)
