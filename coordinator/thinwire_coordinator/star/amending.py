"""Brings what the organizer has ordered into force, between two rounds.

From then on the contract in force is the amended one: the next round is announced under it, and the row that the round
seals has the amendment. In between, it is in the ledger beside the leases (`unsealed`), so that the next process goes
on under the same contract: nodes may have trained on samples that it has chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from shutil import disk_usage

from thinwire_common.units import human_bytes
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.ledger.state_directory import GoOn, StartInterrupted, always, open_state
from thinwire_coordinator.hall.run import tell_amended, tell_refused
from thinwire_coordinator.hall.standby.keeper import Keeper, StandbyAway
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.star.feed import Feed, largest_update
from thinwire_coordinator.star.intake import Intake
from thinwire_coordinator.star.open_round import KnownFingerprints
from thinwire_coordinator.star.replay import replica_at_step
from thinwire_coordinator.star.round.driver import RoundDriver
from thinwire_coordinator.star.sealing import Earlier, Sealer
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.errors import ContractError, LedgerError, LocalError, Locked
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.amendments import amended, given_up, history, row_extras
from thinwire_proto.exact.replica import Replica
from thinwire_proto.wire.rows import Row


class Amending:
    """hold: holds the rounds for as long as something says that none may open. refused: why orders cannot come into
    force, by their ids."""

    def __init__(
        self,
        hall: Hall,
        driver: RoundDriver,
        intake: Intake,
        feed: Feed,
        rewinding: Rewinding,
        hold: Callable[[], None],
    ) -> None:
        self._hall = hall
        self._driver = driver
        self._intake = intake
        self._feed = feed
        self._rewinding = rewinding
        self._hold = hold
        self._orders: Sequence[Order] = ()
        self.refused: dict[str, str] = {}
        self._ever_refused: set[str] = set()
        """An order is among those that wait until it is written as refused."""

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
        known = {amendment.id for amendment in self._hall.contract.amendments} | self._ever_refused
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
            self._take_bounds()
            self._driver.amend(contract.round, contract.schedule.steps)  # it may open a round, so all are in force

    def _take_bounds(self) -> None:
        """Take the bounds of the contract that is in force now."""
        self._intake.amend()
        self._feed.grow(largest_update(self._hall.contract))

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
        self._take_bounds()
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
        self._ever_refused.add(amendment.id)
        tell_refused(amendment, why)


log = logging.getLogger("thinwire.coordinator")


class CannotGoBack(LocalError):
    """The run cannot go back to a step. Nothing was written."""


def kept_replica(folder: Path, step: int, go_on: GoOn = always) -> Replica:
    """The replica of an earlier step of the run in a state directory. Raises CannotGoBack if it is no longer kept or
    the snapshot after the row has no room, LedgerError, OSError, or what `go_on` raises after a row."""
    with closing(open_state(folder, read_only=True)) as state:
        if why := state.why_not_kept(step):
            raise CannotGoBack(why)
        needed, free = state.snapshot_path(state.snapshot_steps()[-1]).stat().st_size, disk_usage(folder).free
        if free < needed:
            raise CannotGoBack(
                f"nodes need a snapshot of {human_bytes(needed)} then, and {human_bytes(free)} are free in {folder}; "
                "make room, and order it again"
            )
        newest = state.snapshots_before(step)[-1]
        count = sum(max(0, last - max(first, newest)) for first, last in history(state.contract, step))
        log.info("%d updates after the snapshot of step %d lead to step %d", count, newest, step)
        return replica_at_step(state, step, go_on=go_on)


class Rewinding:
    """Goes back to the parameters of an earlier step, between two rounds.

    The row that does it has no contributions. The parameters after it are those of the earlier step, so steps count
    on, and the ledger keeps those that were given up. Nodes drop their momentum and fetch the snapshot of the step
    after it. Their leases go on, unless the samples of the given-up steps are to begin again. If the process dies
    before the row is sealed, nothing has happened, and the order still waits.
    """

    def __init__(
        self, hall: Hall, driver: RoundDriver, fingerprints: KnownFingerprints, sealer: Sealer, keeper: Keeper
    ) -> None:
        self._hall = hall
        self._driver = driver
        self._fingerprints = fingerprints
        self._sealer = sealer
        self._keeper = keeper
        self._stopped = False

    def stop(self) -> None:
        """Compute no earlier step any more: the process ends, and the order still waits."""
        self._stopped = True

    async def go_back(self, amendment: Amendment) -> bool:
        """Seal the row of an amendment that goes back. Return False if it cannot be sealed now. Raises ContractError or
        CannotGoBack, and nothing is written then; or what `Sealer.seal` does if the disk fails."""
        hall, to = self._hall, amendment.rewind
        assert to is not None
        contract = amended(hall.contract, amendment)
        hall.state.goes_back = True
        try:
            hall.state.data.amend(contract)
            if away := self._keeper.why_away():
                raise StandbyAway(away)
            log.info("going back to step %d", to)
            earlier = Earlier(await self._read(to), contract)
            again = await self._samples_since(to, amendment.step) if amendment.begins_samples_again else None
            await self._seal(amendment, earlier, again)
        except (Locked, StandbyAway) as error:
            log.warning("the run does not go back yet: %s", error)
            return False
        except StartInterrupted:
            return False
        finally:
            hall.state.data.amend(hall.contract)
            hall.state.goes_back = False
        self._fingerprints.forget()
        self._driver.machine.went_back()
        hall.sealed_at = self._driver.now()
        hall.sealed.set()
        return True

    async def _read(self, step: int) -> Replica:
        hall = self._hall
        try:
            return await hall.workers.submit(Job.READ_EARLIER, kept_replica, hall.state.folder, step, self._go_on)
        except Locked:
            raise
        except (LedgerError, OSError, MemoryError) as error:
            raise CannotGoBack(f"the parameters of step {step} cannot be computed: {error}") from None

    async def _samples_since(self, back: int, step: int) -> int:
        hall, total = self._hall, 0
        for first, end in given_up(hall.contract, back, step):
            read = hall.state.reading_ledger.counted_at
            for _, _, counted in await hall.workers.submit(Job.READ_EARLIER, read, first, end):
                total += sum(samples for _, samples in counted)
        return total

    def _go_on(self) -> None:
        if self._stopped:
            raise StartInterrupted

    async def _seal(self, amendment: Amendment, earlier: Earlier, again: int | None) -> None:
        """again: samples that begin again; None: leases go on."""
        hall, contract = self._hall, earlier.contract
        undo: Callable[[], None] | None = None

        def leases() -> bytes:
            nonlocal undo
            if again is not None:
                undo = hall.leases.begin_again(again)
            return hall.leases.packed()

        nonce = hall.nonce()
        row = Row(
            step=amendment.step,
            round=self._driver.machine.next_round,
            term=hall.term.number,
            nonce=nonce,
            fingerprint=await hall.workers.submit(Job.FINGERPRINT, hall.replica.fingerprint, nonce),
            body_hash=b"",
            body_bytes=0,
            counted=(),
            previous=b"",
            extras=row_extras(contract, amendment.step),
        )
        merger = merger_of(contract, hall.layout, amendment.step)
        try:
            await self._sealer.seal(row, (), merger, leases, earlier)
        except (Locked, StandbyAway):
            if undo is not None:
                undo()
            raise
