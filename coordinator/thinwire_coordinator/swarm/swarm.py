"""The swarm as the coordinator sees it: who is here, which round is open, and what follows when it is over.

Everything here runs on the event loop and takes no time; what does is handed to workers. The rules are pure and stand
elsewhere: `rounds` (when), `admission` (whether), `leases` (what to train on), `sealing` (what comes of it).
Contributions come in at `intake`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Literal

from thinwire_coordinator.ledger.ledger import Term
from thinwire_coordinator.ledger.state_directory import State
from thinwire_coordinator.round.admission import why_drop_momentum
from thinwire_coordinator.round.driver import RoundDriver
from thinwire_coordinator.round.machine import Action, Gathered, Opened, Phase, RoundMachine, Voided
from thinwire_coordinator.swarm.events import (
    ContributionRefused,
    NodeCame,
    RoundOpened,
    RoundSealed,
    RoundVoid,
    UpdateApplied,
)
from thinwire_coordinator.swarm.feed import Feed
from thinwire_coordinator.swarm.fingerprints import KnownFingerprints
from thinwire_coordinator.swarm.intake import Intake, not_counted
from thinwire_coordinator.swarm.members import Member, Members, NewestAnnouncement
from thinwire_coordinator.swarm.open_round import OpenRound
from thinwire_coordinator.swarm.presence import Presence
from thinwire_coordinator.swarm.registry import Registry, Tally
from thinwire_coordinator.swarm.sealing import Accepted, SealedRound, Sealer
from thinwire_coordinator.swarm.tasks import Tasks
from thinwire_coordinator.swarm.workers import Workers
from thinwire_proto.exact.magnitudes import merger_of
from thinwire_proto.exact.replica import Replica
from thinwire_proto.wire.service_pb2 import Announcement, JoinReply, JoinRequest, Receipt, SampleRange

log = logging.getLogger("thinwire.coordinator")

NONCE_BITS = 64


class Swarm:
    """`now`: the coordinator's clock, in seconds. `randomness`: for nonces and the names of sessions."""

    def __init__(
        self,
        state: State,
        replica: Replica,
        term: Term,
        workers: Workers,
        feed: Feed,
        wait_for: int,
        now: Callable[[], float] = time.monotonic,
        randomness: random.Random | None = None,
    ) -> None:
        contract = state.contract
        self.contract = contract
        self.state = state
        self.term = term
        self.feed = feed
        self.workers = workers
        self.layout = replica.layout
        self.measured_step = 0
        """The newest step whose held-out loss was measured, finite or not."""
        self.sealed_at = now()
        """When the newest step was sealed, by the coordinator's clock; before the first, when this began."""
        self.sealed = asyncio.Event()
        """Set at every sealed step; for whoever looks after snapshots and evaluations."""
        self.tasks = Tasks()
        self._random = randomness or random.SystemRandom()
        self.registry = Registry(
            Members(contract.round.nodes_max, self._random),
            state.ledger.leases(),
            KnownFingerprints(contract.round.base_age_max),
            Tally(),
        )
        machine = RoundMachine(contract.round, contract.schedule.steps, term.first_round, replica.step, wait_for)
        self.driver = RoundDriver(machine, self._handle, now)
        self.intake = Intake(contract, term, self.registry, self.driver, workers, self.tasks)
        self._presence = Presence(self.registry.events)
        self._replica = replica
        self._sealer = Sealer(state, replica, feed, workers, now)
        self._fingerprinted = (-1, 0)
        self._granted: dict[str, None] = {}  # to be announced when it is on disk
        self._writing_leases = False
        self._know_older_bases()

    def _know_older_bases(self) -> None:
        """After a restart: what nodes may still stand on, from the rows."""
        head = self._replica.step
        for row in self.state.ledger.rows(max(0, head - self.contract.round.base_age_max), head):
            known = asyncio.get_running_loop().create_future()
            known.set_result(row.fingerprint)
            self.registry.fingerprints.know(row.step, row.nonce, known)

    # what nodes do

    async def join(self, request: JoinRequest, member: Member) -> JoinReply:
        """Say whether a node may go on with its momentum, and put its lease in order accordingly."""
        leases = self.registry.leases
        self._presence.back(member)
        kept = request.HasField("momentum")
        since = request.momentum.sent_since
        in_open_round = sum(self.intake.may_be_counted(name) for name in since)  # now: it may be sealed in the meantime
        counted = await self.workers.disk.submit(self.state.ledger.counted_of, since)
        why = why_drop_momentum(
            kept=kept,
            holds_lease=leases.holds(member.node_id),
            counted_since=counted + in_open_round,
            age_max=self.contract.round.momentum_age_max,
        )
        if why or not kept:
            if self.intake.round is not None and member.node_id in self.intake.round.accepted:
                leases.settle(member.node_id)  # what it has delivered may yet be counted, and is nobody else's
            leases.take_back(member.node_id)
        else:
            momentum = request.momentum
            mark = momentum.trained_through if momentum.HasField("trained_through") else None
            leases.resume(member.node_id, mark)
            leases.seen(member.node_id, self.driver.machine.step)
        take_snapshot = not request.HasField("replica_step") or await self.workers.disk.submit(
            self.state.snapshot_is_lighter, request.replica_step
        )
        return JoinReply(
            contract=self.contract.canonical(),
            session=member.session,
            step=self.feed.step,
            take_snapshot=take_snapshot,
            drop_momentum=why,
        )

    async def attend(self, member: Member) -> AsyncGenerator[Announcement, None]:
        """The node is active for as long as this is iterated over."""
        mine = member.announcements = NewestAnnouncement()
        try:
            mine.put(self._idle_announcement())
            before = self.intake.round
            self.driver.attend(member.node_id)
            self.registry.events.tell(NodeCame(member.node_id))
            if before is not None and self.intake.round is before:
                # it came in the middle of the round, and may still be in time
                self._grant_and_announce([member.node_id])
            while True:
                yield await mine.get()
        finally:
            if member.announcements is mine:  # and not a newer stream of the same node
                member.announcements = None
                self._presence.gone(member)
                self.registry.leases.seen(member.node_id, self.driver.machine.step)
                self.driver.depart(member.node_id)

    def leave(self, member: Member, trained_through: int | None) -> None:
        """In good order: the node keeps its momentum, and what that does not hold of its lease is free."""
        member.leaving = True
        self._presence.left(member)
        self.registry.leases.resume(member.node_id, trained_through)
        self.registry.leases.give_back(member.node_id)

    async def ask_receipt(self, name: bytes) -> Receipt:
        """The receipt of a contribution by its hash, whichever process it was given to.

        A node asks in a session after the one in which it sent: what had not arrived whole by then never will.
        """
        if (receipt := await self.intake.ask_receipt(name)) is not None:
            return receipt
        step = await self.workers.disk.submit(self.state.ledger.step_of_contribution, name)
        if step is None:
            return not_counted(Receipt.REASON_UNKNOWN, "it is in no sealed update, and in no round that is open")
        return Receipt(outcome=Receipt.OUTCOME_COUNTED, step=step)

    # what the organizer asks

    @property
    def failed(self) -> asyncio.Future[None]:
        """Gets the exception if a round cannot be sealed."""
        return self.tasks.failed

    @property
    def stage(self) -> Literal["waiting", "training", "complete"]:
        if self.driver.machine.phase is Phase.COMPLETE:
            return "complete"
        return "waiting" if self.intake.round is None and self.driver.machine.missing_nodes else "training"

    @property
    def condition(self) -> str:
        """The stage, in words."""
        missing = self.driver.machine.missing_nodes
        return f"waiting for {missing} more node{'s' if missing > 1 else ''}" if self.stage == "waiting" else self.stage

    @property
    def round_number(self) -> int:
        return max(self.driver.machine.next_round - 1, 0)

    async def own_fingerprint(self) -> tuple[int, int]:
        """(step, fingerprint under the nonce 0) of the coordinator's replica."""
        return await self.workers.replica.submit(self._own_fingerprint)

    def _own_fingerprint(self) -> tuple[int, int]:
        step, number = self._fingerprinted
        if step != self._replica.step:
            self._fingerprinted = step, number = self._replica.step, self._replica.fingerprint(0)
        return step, number

    # what the round machine decides

    def _handle(self, action: Action) -> None:
        try:
            if isinstance(action, Opened):
                self._open(action)
            elif isinstance(action, Gathered):
                assert self.intake.round is not None
                self.tasks.keep(self._seal(self.intake.round, action))
            else:
                self._void(action)
        except Exception as error:  # noqa: BLE001 - half an action would leave the swarm without a round for ever
            self.tasks.fail(error)

    def _open(self, opened: Opened) -> None:
        nonce = self._random.getrandbits(NONCE_BITS)
        fingerprint = self.workers.replica.submit(self._replica.fingerprint, nonce)
        self.registry.fingerprints.know(opened.step, nonce, fingerprint)
        now = self.driver.now()
        merger = merger_of(self.contract, self.layout, opened.step)
        k = self.contract.demo.k_of_round(len(opened.nodes))
        self.intake.round = OpenRound(opened.round, opened.step, now, opened.deadline, k, merger)
        self.registry.events.tell(
            RoundOpened(opened.round, opened.step, len(opened.nodes), now, self.contract.round.length_s)
        )
        self._grant_and_announce(opened.nodes)

    def _grant_and_announce(self, nodes: Iterable[str]) -> None:
        """Announced when it is on disk which samples were granted: so nobody else gets them after a crash."""
        leases, step = self.registry.leases, self.driver.machine.step
        for node in leases.away_since_before(step - self.contract.round.momentum_age_max):
            if (member := self.registry.members.by_id.get(node)) is None or member.announcements is None:
                leases.take_back(node)  # its momentum is worth nothing by now, and is dropped if it comes back
        for node in nodes:
            leases.grant(node, self.contract.round.lease_samples, step)
            self._granted[node] = None
        if not self._writing_leases:
            self._write_leases()

    def _write_leases(self) -> None:
        """One write at a time, for all that were granted something meanwhile: a thousand may come back at once."""
        self._writing_leases = True
        announced = list(self._granted)
        self._granted.clear()
        written = self.workers.disk.submit(self.state.ledger.record_leases, self.registry.leases.packed())
        self.tasks.must_succeed(written)

        def done(_: asyncio.Future[None]) -> None:
            self._writing_leases = False
            self._announce(*announced)
            if self._granted:
                self._write_leases()

        written.add_done_callback(done)

    async def _seal(self, current: OpenRound, gathered: Gathered) -> None:
        gathered_at = self.driver.now()
        base = self.registry.fingerprints.at(gathered.step)
        assert base is not None
        fingerprint = await base.fingerprint
        sealed = SealedRound(gathered.round, self.term.number, gathered.step, base.nonce, fingerprint)
        accepted = [current.accepted[node] for node in gathered.nodes]
        counted = tuple(entry.counted for entry in accepted)
        for node in gathered.nodes:
            self.registry.leases.settle(node)
        out = await self._sealer.seal(sealed, counted, current.merger, self.registry.leases.packed)
        self.tasks.keep(self._tell_applied(current.step, out.applied))
        tokens = self._count(accepted)
        loss = self.registry.tally.loss_training
        assert loss is not None
        self.sealed_at = self.driver.now()
        self.registry.events.tell(
            RoundSealed(
                round=current.number,
                step=current.step,
                at=self.sealed_at,
                why=gathered.why,
                counted=counted,
                tokens=tokens,
                loss=loss,
                learning_rate=out.update.learning_rate,
                update_bytes=out.size,
                components=out.components,
                codec=out.form,
                gather_s=gathered_at - current.opened,
                merge_s=out.merge_s,
                seal_s=out.seal_s,
            )
        )
        self.intake.close(current, Receipt(outcome=Receipt.OUTCOME_COUNTED, step=current.step))
        log.debug("round %d over (%s): step %d, %d counted", current.number, gathered.why, current.step, len(accepted))
        self.intake.round = None
        self.sealed.set()
        self.driver.sealed()
        if self.driver.machine.phase is Phase.COMPLETE:
            log.info("the run is complete: %d updates are sealed", self.driver.machine.step)
            self._announce(*self.registry.members.by_id)

    def _void(self, voided: Voided) -> None:
        current, self.intake.round = self.intake.round, None
        assert current is not None
        log.warning("round %d is void: %s", voided.round, voided.why)
        written = self.workers.disk.submit(self.state.ledger.record_void, self.term.number, voided.round, voided.why)
        self.tasks.must_succeed(written)
        events = self.registry.events
        for node in current.accepted:
            if member := self.registry.members.by_id.get(node):
                member.not_counted += 1
            events.tell(ContributionRefused(node, Receipt.REASON_VOID))
        events.tell(RoundVoid(voided.round, voided.why, self.driver.now()))
        self.intake.close(current, not_counted(Receipt.REASON_VOID, f"round {voided.round} is void: {voided.why}"))
        self._announce(*self.registry.members.by_id)

    async def _tell_applied(self, step: int, applied: asyncio.Future[float]) -> None:
        self.registry.events.tell(UpdateApplied(step, await applied))

    def _count(self, accepted: list[Accepted]) -> int:
        """Returns the tokens that were counted."""
        tokens_a_sample = self.contract.model.context
        samples = sum(entry.counted.samples for entry in accepted)
        for entry in accepted:
            member = self.registry.members.by_id.get(entry.counted.node)
            if member is not None:
                member.counted += 1
                member.tokens += entry.counted.samples * tokens_a_sample
        tally = self.registry.tally
        tally.tokens += samples * tokens_a_sample
        tally.loss_training = sum(entry.loss * entry.counted.samples for entry in accepted) / samples
        return samples * tokens_a_sample

    # the small parts

    def _announcement(self, current: OpenRound, node: str) -> Announcement:
        now = self.driver.now()
        return Announcement(
            state=Announcement.STATE_ROUND,
            term=self.term.number,
            round=current.number,
            step=current.step,
            time_left_ms=max(0, round((current.deadline - now) * 1000)),
            clock_us=round(now * 1e6),
            k=current.k,
            nonces=self.registry.fingerprints.nonces(current.step),
            lease=[SampleRange(start=run.start, count=run.count) for run in self.registry.leases.granted(node)],
        )

    def _idle_announcement(self) -> Announcement:
        """What a node hears that has no part in an open round."""
        complete = self.driver.machine.phase is Phase.COMPLETE
        state = Announcement.STATE_COMPLETE if complete else Announcement.STATE_WAITING
        text = self.condition if self.intake.round is None else "a round is open"
        return Announcement(state=state, term=self.term.number, step=self.driver.machine.step, text=text)

    def _announce(self, *nodes: str) -> None:
        current = self.intake.round
        for node in nodes:
            member = self.registry.members.by_id.get(node)
            if member is not None and member.announcements is not None:
                in_it = current is not None and self.registry.leases.holds(node)
                announcement = self._announcement(current, node) if current and in_it else self._idle_announcement()
                member.announcements.put(announcement)
