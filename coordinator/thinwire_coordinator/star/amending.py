"""Brings what the organizer has ordered into force, between two rounds.

From then on the contract in force is the amended one: the next round is announced under it, and the row that the round
seals has the amendment. In between, it is in the ledger beside the leases (`unsealed`), so that the next process goes
on under the same contract: nodes may have trained on samples that it has chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.orders import tell_amended, tell_refused
from thinwire_coordinator.star.intake import Intake
from thinwire_coordinator.star.rewinding import CannotGoBack, Rewinding
from thinwire_coordinator.star.round.driver import RoundDriver
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.errors import ContractError
from thinwire_proto.exact.amendments import amended


class Amending:
    """hold: holds the rounds for as long as something says that none may open. refused: why orders cannot come into
    force, by their ids."""

    def __init__(
        self, hall: Hall, driver: RoundDriver, intake: Intake, rewinding: Rewinding, hold: Callable[[], None]
    ) -> None:
        self._hall = hall
        self._driver = driver
        self._intake = intake
        self._rewinding = rewinding
        self._hold = hold
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
        """Bring what is due into force. step: of the next round. To go back to an earlier step takes a while, in which
        no round opens and other orders wait."""
        if self._driver.going_back is not None:
            return
        known = {amendment.id for amendment in self._hall.contract.amendments}
        due = [one for one in self._orders if one.id not in known and (one.at is None or one.at <= step)]
        self._orders = [one for one in self._orders if one.id not in known and one not in due]
        before = self._hall.contract
        while due and self._driver.going_back is None:
            order = due.pop(0)
            earlier = self._hall.contract.amendments
            position = max(self._hall.leases.cursor, earlier[-1].position if earlier else 0)  # samples may begin again
            amendment = Amendment(step, order.changes, order.because, order.id, position)
            if amendment.rewind is None:
                self._begin(amendment)
            else:
                self._driver.going_back = amendment.rewind
                self._driver.hold(held=True)
                self._hall.tasks.seal(self._go_back(amendment))
        self._orders = [*due, *self._orders]
        if (contract := self._hall.contract) is not before:
            self._intake.amend()
            self._driver.amend(contract.round, contract.schedule.steps)  # it may open a round, so all are in force

    async def _go_back(self, amendment: Amendment) -> None:
        """Go back to an earlier step, unless that cannot be. A row that cannot be sealed now waits for the next `take`,
        since each try computes the parameters again."""
        waits = False
        try:
            if await self._rewinding.go_back(amendment):
                tell_amended(amendment)
            else:
                waits = True
        except (ContractError, CannotGoBack) as error:
            self._refuse(amendment, str(error))
        finally:
            self._driver.going_back = None
        self._intake.amend()
        if not waits:
            self.between_rounds(self._driver.machine.step)
        contract = self._hall.contract
        self._driver.amend(contract.round, contract.schedule.steps)
        self._hold()

    def _begin(self, amendment: Amendment) -> None:
        try:
            contract = amended(self._hall.contract, amendment)
            self._hall.state.data.amend(contract)
        except ContractError as error:
            self._refuse(amendment, str(error))
            return
        self._hall.state.contract = contract
        tell_amended(amendment)

    def _refuse(self, amendment: Amendment, why: str) -> None:
        self.refused[amendment.id] = why
        tell_refused(amendment, why)
