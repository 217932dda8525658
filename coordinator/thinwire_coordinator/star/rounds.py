"""Carries out the actions of the round machine: opens a round, seals its update, or records it as void.

Everything here runs on the event loop and returns at once; workers do the slow jobs.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from thinwire_common.logs import tell
from thinwire_coordinator.hall.events import ContributionRefused, PhaseTook, RoundOpened, RoundSealed, RoundVoid
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.measurement import weighted_median
from thinwire_coordinator.hall.standby.keeper import StandbyAway
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.star.amending import Amending
from thinwire_coordinator.star.announcer import Announcer
from thinwire_coordinator.star.evaluations import Evaluations
from thinwire_coordinator.star.intake import Intake
from thinwire_coordinator.star.open_round import KnownFingerprints, OpenRound
from thinwire_coordinator.star.round.announcements import Receipt
from thinwire_coordinator.star.round.contributions import Contribution, Round
from thinwire_coordinator.star.round.driver import RoundDriver
from thinwire_coordinator.star.round.machine import Action, Gathered, Opened, Voided
from thinwire_coordinator.star.sealing import PublishedUpdate, Sealer
from thinwire_coordinator.star.trust.observer import Observer
from thinwire_proto.errors import Locked
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.amendments import row_extras
from thinwire_proto.wire.reasons import Reason
from thinwire_proto.wire.rows import Row

log = logging.getLogger("thinwire.coordinator")

LEDGER_LOCKED = "another program holds the lock of the ledger"


@dataclass(eq=False)
class Rounds:
    """Carries out each action that `handle` receives."""

    hall: Hall
    driver: RoundDriver
    fingerprints: KnownFingerprints
    sealer: Sealer
    intake: Intake
    announcer: Announcer
    evaluations: Evaluations
    observer: Observer
    amending: Amending

    def handle(self, action: Action) -> None:
        try:
            if isinstance(action, Opened):
                self._open(action)
            elif isinstance(action, Gathered):
                assert self.intake.current is not None
                self.hall.tasks.seal(self._seal(self.intake.current, action))
            else:
                self._void(action)
        except Exception as error:  # noqa: BLE001 - half an action would leave the swarm without a round forever
            self.hall.tasks.fail(error)

    def _open(self, opened: Opened) -> None:
        current = self.driver.machine.round
        assert current is not None
        nonce = self.hall.nonce()
        fingerprint = self.hall.workers.submit(Job.FINGERPRINT, self.hall.replica.fingerprint, nonce)
        self.fingerprints.know(opened.step, nonce, fingerprint)
        self.intake.open(current, merger_of(self.hall.contract, self.hall.layout, opened.step))
        self.hall.events.tell(
            RoundOpened(opened.round, opened.step, len(opened.nodes), current.opened, self.hall.contract.round.length_s)
        )
        self.evaluations.opened(opened.step, opened.nodes)
        self.observer.opened(opened.round, opened.nodes)
        self.announcer.grant_and_announce(opened.nodes)

    async def _seal(self, current: OpenRound, gathered: Gathered) -> None:
        gathered_at = self.driver.now()
        base = self.fingerprints.at(gathered.step)
        assert base is not None
        fingerprint = await base.fingerprint
        accepted, leases = tuple(current.round.accepted), self.hall.leases
        settled = {contribution.node: leases.settle(contribution.node) for contribution in accepted}
        signatures = tuple(contribution.signed for contribution in accepted)
        row = Row(
            step=gathered.step,
            round=gathered.round,
            term=self.hall.term.number,
            nonce=base.nonce,
            fingerprint=fingerprint,
            body_hash=b"",
            body_bytes=0,
            counted=tuple(contribution.counted for contribution in accepted),
            previous=b"",
            extras=row_extras(self.hall.contract, gathered.step),
        )
        try:
            out = await self.sealer.seal(row, signatures, current.merger, leases.packed)
        except (Locked, StandbyAway) as error:
            log.warning("round %d is not sealed, and its contributions go back: %s", gathered.round, error)
            for node, runs in settled.items():
                leases.unsettle(node, runs)
            self.driver.not_sealed(LEDGER_LOCKED if isinstance(error, Locked) else str(error))
            return
        self.hall.tasks.keep(self._tell_applied(out.applied))
        self.hall.sealed_at = self.driver.now()
        self.intake.close(Receipt(Reason.COUNTED, step=gathered.step))
        self._tell_sealed(current.round, gathered, out, gathered_at)
        self.observer.sealed()
        text = f"round {gathered.round} over ({gathered.why}): step {gathered.step}, {len(accepted)} counted"
        tell(log, logging.DEBUG, "coordinator.round_sealed", text, round=gathered.round, step=gathered.step)
        self.amending.between_rounds(gathered.step + 1)
        self.hall.sealed.set()
        self.driver.sealed()
        if self.driver.machine.complete:
            text = f"the run is complete: {self.driver.machine.step} updates are sealed"
            tell(log, logging.INFO, "coordinator.run_complete", text, step=self.driver.machine.step)
        if self.driver.machine.complete or self.hall.pause is not None or self.driver.going_back is not None:
            self.announcer.announce_to_all()

    def _void(self, voided: Voided) -> None:
        current = self.intake.current
        assert current is not None
        text = f"round {voided.round} is void: {voided.why}"
        tell(log, logging.WARNING, "coordinator.round_void", text, round=voided.round, reason=voided.why)
        written = self.hall.workers.submit(
            Job.WRITE_VOID, self.hall.state.ledger.record_void, self.hall.term.number, voided.round, voided.why
        )
        self.hall.tasks.must_succeed(written)
        self.observer.voided()
        self.intake.close(Receipt(Reason.VOID, f"round {voided.round} is void: {voided.why}"))
        events = self.hall.events
        for contribution in current.round.accepted:
            events.tell(ContributionRefused(contribution.node, Reason.VOID))
        events.tell(RoundVoid(voided.round, voided.why, self.driver.now()))
        self.amending.between_rounds(self.driver.machine.step)
        if self.intake.current is None:  # otherwise a round has begun, which is announced once its leases are on disk
            self.announcer.announce_to_all()

    def _tell_sealed(self, current: Round, gathered: Gathered, out: PublishedUpdate, gathered_at: float) -> None:
        accepted = tuple(current.accepted)
        self.hall.events.tell(
            RoundSealed(
                round=gathered.round,
                step=gathered.step,
                at=self.hall.sealed_at,
                why=gathered.why,
                counted=tuple(contribution.counted for contribution in accepted),
                tokens=_samples(accepted) * self.hall.state.tokens_a_sample,
                loss=weighted_median((one.loss, one.weight) for one in accepted),
                learning_rate=out.update.learning_rate,
                update_bytes=out.size,
                components=out.components,
                gather_s=gathered_at - current.opened,
                merge_s=out.merge_s,
                seal_s=out.seal_s,
            )
        )

    async def _tell_applied(self, applied: asyncio.Future[float]) -> None:
        self.hall.events.tell(PhaseTook("apply", await applied))


def _samples(accepted: tuple[Contribution, ...]) -> int:
    return sum(contribution.samples for contribution in accepted)
