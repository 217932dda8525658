"""What the event loop keeps beside the pure `Round`: where its votes are merged, and who waits for a receipt."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from thinwire_coordinator.round.contributions import Contribution, Round
from thinwire_proto.exact.votes import Merges
from thinwire_proto.wire.service_pb2 import Receipt


@dataclass
class OpenRound:
    """k: components that each of its contributions may have."""

    round: Round
    k: int
    merger: Merges
    _receipts: dict[bytes, asyncio.Future[Receipt]] = field(default_factory=dict)

    def arrived(self, contribution: Contribution, name: bytes, arrived_us: int) -> None:
        """A contribution has arrived whole. Its receipt can be waited for from now on."""
        self.round.arrived(contribution, name, arrived_us)
        self._receipts[name] = asyncio.get_running_loop().create_future()

    def receipt(self, name: bytes) -> asyncio.Future[Receipt] | None:
        """The receipt of a contribution that has arrived whole; shield it, since others wait for it, too."""
        return self._receipts.get(name)

    def refuse(self, contribution: Contribution, receipt: Receipt) -> None:
        """Answer a contribution that was checked, and is not accepted."""
        self.round.refuse(contribution)
        self._answer(contribution, receipt)

    def close(self, receipt: Receipt) -> None:
        """The round is over: every accepted contribution gets this receipt."""
        for contribution in self.round.accepted:
            self.round.over(contribution)
            own = Receipt()
            own.CopyFrom(receipt)
            self._answer(contribution, own)

    def _answer(self, contribution: Contribution, receipt: Receipt) -> None:
        receipt.arrived_us = contribution.arrived_us
        self._receipts[contribution.name].set_result(receipt)
