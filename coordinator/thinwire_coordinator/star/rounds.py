"""Carries out the actions of the round machine: opens a round, seals its update, or records it as void.

Everything here runs on the event loop and returns at once; workers do the slow jobs.
"""

from __future__ import annotations

import asyncio
import logging

from thinwire_common.logs import tell
from thinwire_coordinator.hall.events import ContributionRefused, PhaseTook, RoundOpened, RoundSealed, RoundVoid
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.measurement import weighted_median
from thinwire_coordinator.hall.standby.keeper import StandbyAway
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.star.amending import Amending
from thinwire_coordinator.star.announcer import Announcer
from thinwire_coordinator.star.evaluations import Evaluations
from thinwire_coordinator.star.fingerprints import KnownFingerprints
from thinwire_coordinator.star.intake import Intake
from thinwire_coordinator.star.open_round import OpenRound
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


class Rounds:
    """Carries out each action that `handle` receives."""

    def __init__(
        self,
        hall: Hall,
        driver: RoundDriver,
        fingerprints: KnownFingerprints,
        sealer: Sealer,
        intake: Intake,
        announcer: Announcer,
        evaluations: Evaluations,
        observer: Observer,
        amending: Amending,
    ) -> None:
        self._hall = hall
        self._driver = driver
        self._fingerprints = fingerprints
        self._intake = intake
        self._announcer = announcer
        self._evaluations = evaluations
        self._observer = observer
        self._sealer = sealer
        self._amending = amending

    def handle(self, action: Action) -> None:
        try:
            if isinstance(action, Opened):
                self._open(action)
            elif isinstance(action, Gathered):
                assert self._intake.current is not None
                self._hall.tasks.seal(self._seal(self._intake.current, action))
            else:
                self._void(action)
        except Exception as error:  # noqa: BLE001 - half an action would leave the swarm without a round forever
            self._hall.tasks.fail(error)

    def _open(self, opened: Opened) -> None:
        current = self._driver.machine.round
        assert current is not None
        nonce = self._hall.nonce()
        fingerprint = self._hall.workers.submit(Job.FINGERPRINT, self._hall.replica.fingerprint, nonce)
        self._fingerprints.know(opened.step, nonce, fingerprint)
        self._intake.open(current, merger_of(self._hall.contract, self._hall.layout, opened.step))
        self._hall.events.tell(
            RoundOpened(
                opened.round, opened.step, len(opened.nodes), current.opened, self._hall.contract.round.length_s
            )
        )
        self._evaluations.opened(opened.step, opened.nodes)
        self._observer.opened(opened.round, opened.nodes)
        self._announcer.grant_and_announce(opened.nodes)

    async def _seal(self, current: OpenRound, gathered: Gathered) -> None:
        gathered_at = self._driver.now()
        base = self._fingerprints.at(gathered.step)
        assert base is not None
        fingerprint = await base.fingerprint
        accepted, leases = tuple(current.round.accepted), self._hall.leases
        settled = {contribution.node: leases.settle(contribution.node) for contribution in accepted}
        signatures = tuple(contribution.signed for contribution in accepted)
        row = Row(
            step=gathered.step,
            round=gathered.round,
            term=self._hall.term.number,
            nonce=base.nonce,
            fingerprint=fingerprint,
            body_hash=b"",
            body_bytes=0,
            counted=tuple(contribution.counted for contribution in accepted),
            previous=b"",
            extras=row_extras(self._hall.contract, gathered.step),
        )
        try:
            out = await self._sealer.seal(row, signatures, current.merger, leases.packed)
        except (Locked, StandbyAway) as error:
            log.warning("round %d is not sealed, and its contributions go back: %s", gathered.round, error)
            for node, runs in settled.items():
                leases.unsettle(node, runs)
            self._driver.not_sealed(LEDGER_LOCKED if isinstance(error, Locked) else str(error))
            return
        self._hall.tasks.keep(self._tell_applied(out.applied))
        self._hall.sealed_at = self._driver.now()
        self._intake.close(Receipt(Reason.COUNTED, step=gathered.step))
        self._tell_sealed(current.round, gathered, out, gathered_at)
        self._observer.sealed()
        text = f"round {gathered.round} over ({gathered.why}): step {gathered.step}, {len(accepted)} counted"
        tell(log, logging.DEBUG, "coordinator.round_sealed", text, round=gathered.round, step=gathered.step)
        self._amending.between_rounds(gathered.step + 1)
        self._hall.sealed.set()
        self._driver.sealed()
        if self._driver.machine.complete:
            text = f"the run is complete: {self._driver.machine.step} updates are sealed"
            tell(log, logging.INFO, "coordinator.run_complete", text, step=self._driver.machine.step)
        if self._driver.machine.complete or self._hall.pause is not None or self._driver.going_back is not None:
            self._announcer.announce_to_all()

    def _void(self, voided: Voided) -> None:
        current = self._intake.current
        assert current is not None
        text = f"round {voided.round} is void: {voided.why}"
        tell(log, logging.WARNING, "coordinator.round_void", text, round=voided.round, reason=voided.why)
        written = self._hall.workers.submit(
            Job.WRITE_VOID, self._hall.state.ledger.record_void, self._hall.term.number, voided.round, voided.why
        )
        self._hall.tasks.must_succeed(written)
        self._observer.voided()
        self._intake.close(Receipt(Reason.VOID, f"round {voided.round} is void: {voided.why}"))
        events = self._hall.events
        for contribution in current.round.accepted:
            events.tell(ContributionRefused(contribution.node, Reason.VOID))
        events.tell(RoundVoid(voided.round, voided.why, self._driver.now()))
        self._amending.between_rounds(self._driver.machine.step)
        self._announcer.announce_to_all()

    def _tell_sealed(self, current: Round, gathered: Gathered, out: PublishedUpdate, gathered_at: float) -> None:
        accepted = tuple(current.accepted)
        self._hall.events.tell(
            RoundSealed(
                round=gathered.round,
                step=gathered.step,
                at=self._hall.sealed_at,
                why=gathered.why,
                counted=tuple(contribution.counted for contribution in accepted),
                tokens=_samples(accepted) * self._hall.state.tokens_a_sample,
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
        self._hall.events.tell(PhaseTook("apply", await applied))


def _samples(accepted: tuple[Contribution, ...]) -> int:
    return sum(contribution.samples for contribution in accepted)
