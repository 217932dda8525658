"""Brings what the organizer has ordered into force, between two rounds.

From then on the contract in force is the amended one: the next round is announced under it, and the row that the round
seals has the amendment. In between, it is in the ledger beside the leases (`unsealed`), so that the next process goes
on under the same contract: nodes may have trained on samples that it has chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgpack

from thinwire_common.logs import tell
from thinwire_coordinator.hall.access.amendments import Order
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.ledger.state_directory import BEGUN_AMENDMENTS
from thinwire_coordinator.star.intake import Intake
from thinwire_coordinator.star.round.driver import RoundDriver
from thinwire_proto.contract import Contract
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.errors import ContractError
from thinwire_proto.exact.amendments import amended

log = logging.getLogger("thinwire.coordinator")


def unsealed(contract: Contract, step: int) -> dict[str, bytes]:
    """The amendments that no row has, packed, by their keys in the ledger. step: of the next row."""
    found = [amendment for amendment in contract.amendments if amendment.step >= step]
    return {f"{BEGUN_AMENDMENTS}{amendment.id}": bytes(msgpack.packb(amendment.written)) for amendment in found}


class Amending:
    """refused: why orders cannot come into force, by their ids."""

    def __init__(self, hall: Hall, driver: RoundDriver, intake: Intake) -> None:
        self._hall = hall
        self._driver = driver
        self._intake = intake
        self._orders: Sequence[Order] = ()
        self.refused: dict[str, str] = {}

    def take(self, orders: Sequence[Order]) -> Mapping[str, str]:
        """Take all orders that wait. Returns why orders were refused, by their ids, since the last call."""
        self._orders = orders
        if self._driver.machine.round is None:
            self.between_rounds(self._driver.machine.step)
        refused, self.refused = self.refused, {}
        return refused

    def between_rounds(self, step: int) -> None:
        """Bring what is due into force. step: of the next round."""
        known = {amendment.id for amendment in self._hall.contract.amendments}
        due = [one for one in self._orders if one.id not in known and (one.at is None or one.at <= step)]
        self._orders = [one for one in self._orders if one.id not in known and one not in due]
        before = self._hall.contract
        for order in due:
            self._begin(Amendment(step, order.changes, order.because, order.id, self._hall.leases.cursor))
        if (contract := self._hall.contract) is not before:
            self._intake.amend()
            self._driver.amend(contract.round, contract.schedule.steps)  # it may open a round, so all are in force

    def _begin(self, amendment: Amendment) -> None:
        try:
            contract = amended(self._hall.contract, amendment)
            self._hall.state.data.amend(contract)
        except ContractError as error:
            self.refused[amendment.id] = str(error)
            log.error("the amendment %s is refused: %s", amendment.in_words, error)
            return
        self._hall.state.contract = contract
        step, words = amendment.step, amendment.in_words
        tell(log, logging.INFO, "coordinator.amended", f"amended from step {step} on: {words}", step=step, reason=words)
