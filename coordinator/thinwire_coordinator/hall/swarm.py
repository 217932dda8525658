"""The swarm's interface to nodes: join, attend, contribute, ask for a receipt, leave.

Everything here runs on the event loop and returns at once; workers do the slow jobs. `rounds` handles the end of a
round, and `assembly` puts all parts together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial

from thinwire_common.logs import tell
from thinwire_coordinator.hall.access.refusals import Denied, DoorReason
from thinwire_coordinator.hall.copies import Copies
from thinwire_coordinator.hall.events import NodeCame
from thinwire_coordinator.hall.joining import JoinDecision, OfferedMomentum
from thinwire_coordinator.hall.members import Member, Moment, NewestAnnouncement
from thinwire_coordinator.hall.places import Places
from thinwire_coordinator.hall.presence import Presence
from thinwire_coordinator.hall.shared import Shared
from thinwire_coordinator.hall.view import SwarmView
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.star.announcer import Announcer
from thinwire_coordinator.star.evaluations import Evaluations
from thinwire_coordinator.star.intake import Intake
from thinwire_coordinator.star.round.admission import ContributionClaim, why_drop_momentum
from thinwire_coordinator.star.round.announcements import Announcement
from thinwire_coordinator.star.round.driver import RoundDriver
from thinwire_coordinator.star.round.receipts import Receipt
from thinwire_coordinator.star.rounds import Rounds
from thinwire_coordinator.star.trust.observer import Observer
from thinwire_proto.exact.replica import Replica
from thinwire_proto.wire.reasons import Reason

log = logging.getLogger("thinwire.coordinator")


class Swarm:
    """A running swarm.

    view: read-only access to its state. sealed: an event that is set at every sealed step. failed: a future that gets
    the exception if the coordinator cannot go on, for example if it cannot seal a round.
    """

    def __init__(
        self,
        shared: Shared,
        replica: Replica,
        copies: Copies,
        view: SwarmView,
        intake: Intake,
        announcer: Announcer,
        rounds: Rounds,
        evaluations: Evaluations,
        observer: Observer,
    ) -> None:
        self.view = view
        self.intake = intake
        self.state = shared.state
        self.registry = shared.registry
        self.members = shared.registry.members
        self.events = shared.registry.events
        self.driver = shared.driver
        self.feed = shared.feed
        self.workers = shared.workers
        self.tasks = shared.tasks
        self.failed: asyncio.Future[None] = shared.tasks.failed
        self.now_us = shared.driver.now_us
        self.sealed = rounds.sealed
        self.evaluations = evaluations
        self.copies = copies
        self.observer = observer
        self._announcer = announcer
        self.loses_place: Callable[[Member], None] = lambda member: None
        """Set by a run without a centre, which has other peers of the member to tell."""
        self.places = Places(shared.registry.members, partial(_moment, shared.driver, view))
        self.events.watchers.append(self.places.watch)
        self._presence = Presence(shared.registry.events)
        self._replica = replica
        self._fingerprinted = (-1, 0)

    async def join(self, member: Member, momentum: OfferedMomentum | None, replica_step: int | None) -> JoinDecision:
        """Decide whether a joining node may keep its momentum, and adjust its lease accordingly.

        replica_step: the step of the node's replica; None if it has none.
        """
        leases, state, spec = self.registry.leases, self.state, self.view.contract.round
        self._presence.back(member)
        since = momentum.sent_since if momentum else ()
        in_open_round = sum(self.intake.may_be_counted(name) for name in since)  # before the await: the round may end
        counted = await self.workers.submit(Job.COUNT_SENT, state.reading_ledger.counted_of, since)
        why = why_drop_momentum(
            kept=momentum is not None,
            holds_lease=leases.holds(member.node_id),
            counted_since=counted + in_open_round,
            age_max=spec.momentum_age_max,
        )
        if why or momentum is None:
            if self.intake.may_count_from(member.node_id):
                leases.settle(member.node_id)  # its contribution may still be counted, so nobody else gets the samples
            leases.take_back(member.node_id)
        else:
            leases.resume(member.node_id, momentum.trained_through)
            leases.seen(member.node_id, self.driver.step)
        take_snapshot = replica_step is None or await self.workers.submit(
            Job.COMPARE_CATCH_UP, state.snapshot_is_lighter, replica_step
        )
        return JoinDecision(self.feed.step, take_snapshot, why)

    async def attend(self, member: Member) -> AsyncGenerator[Announcement, None]:
        """Announcements for a node. The node is active while its caller iterates."""
        mine = member.announcements = NewestAnnouncement()
        try:
            mine.put(self._announcer.idle())
            before = self.intake.current
            self.driver.attend(member.node_id, has_weight=self.observer.trust_in(member.node_id) > 0)
            self.events.tell(NodeCame(member.node_id))
            if before is not None and self.intake.current is before:
                # the node came in the middle of a round and may still contribute in time
                self._announcer.grant_and_announce([member.node_id])
            self._announcer.tell_idle_soon()
            while (announcement := await mine.get()) is not None:
                yield announcement
        finally:
            if member.announcements is mine:  # otherwise the node has opened a newer stream
                member.announcements = None
                self._stream_ended(member)

    def _stream_ended(self, member: Member) -> None:
        newest = self.members.by_id.get(member.node_id, member)
        if newest.announcements is not None:
            return  # it had lost its place, and has one again
        self._presence.gone(member)
        self.evaluations.left(member.node_id)
        self.registry.leases.seen(member.node_id, self.driver.step)
        self.driver.depart(member.node_id)
        self._announcer.tell_idle_soon()

    def leave(self, member: Member, trained_through: int | None) -> None:
        """Handle an orderly departure: the node keeps its momentum, and the rest of its lease becomes free."""
        member.leaving = True
        self._presence.left(member)
        self.registry.leases.resume(member.node_id, trained_through)
        self.registry.leases.give_back(member.node_id)

    async def has_counted(self, node_id: str) -> bool:
        """Whether a contribution of a node was ever counted, in this process or an earlier one."""
        key_of = self.state.reading_ledger.signatures.key_of
        return await self.workers.submit(Job.FIND_CONTRIBUTOR, key_of, node_id) is not None

    def make_place(self, node_id: str, group: str, *, has_counted: bool) -> bool:
        """Free a place of the full swarm for a node that wants to join. Returns False if it has to wait."""
        given = self.places.given_to(node_id, group, has_counted=has_counted)
        if given is None:
            return False
        member = self.members.by_id[given.node]
        text = f"this node's place was given to another one: {given.reason}; it may join again when a place is free"
        self.expel(given.node, Denied(DoorReason.FULL, text))
        self.loses_place(member)
        self.members.forget(member)
        return True

    def expel(self, node_id: str, denied: Denied) -> None:
        """End the session of a node, if it has one. Its open streams end, and its next call must be Join."""
        member = self.members.expel(node_id, denied)
        if member is None:
            return
        name, reason = member.name, denied.text
        text = f"{name}: its session was ended: {reason}"
        tell(log, logging.WARNING, "coordinator.session_ended", text, node_id=node_id, name=name, reason=reason)
        if member.announcements is not None:
            member.announcements.end()
        self.feed.wake()

    async def contribute(self, member: Member, claim: ContributionClaim, parts: AsyncIterator[bytes]) -> Receipt:
        """Receive a contribution and return its receipt, which may take until its round is over."""
        return await self.intake.contribute(member, claim, parts)

    async def ask_receipt(self, name: bytes) -> Receipt:
        """Return the receipt of a contribution by its hash, even if an earlier process received it.

        A node asks in a newer session than the one in which it sent. A contribution that was incomplete by then never
        completes.
        """
        if (receipt := await self.intake.ask_receipt(name)) is not None:
            return receipt
        # a round is closed only after its row is committed, so this connection sees the row
        step = await self.workers.submit(Job.FIND_RECEIPT, self.state.reading_ledger.step_of_contribution, name)
        if step is None:
            return Receipt(Reason.UNKNOWN, "the contribution is in no sealed update and in no open round")
        return Receipt(Reason.COUNTED, step=step)

    def stop(self) -> None:
        """Stop the timers, so that no round opens or ends any more. Then call `settle`, unless the process dies."""
        self.tasks.stop()
        self.driver.stop()
        self.evaluations.stop()
        self.observer.stop()

    async def settle(self, within_s: float) -> None:
        """Wait for the row that is being sealed, at most for so long. Then all watchers know of each sealed row."""
        await self.tasks.settle(within_s)

    def end(self) -> None:
        """Give up the row that is still being sealed. Its write may reach the disk; nobody is told of it."""
        self.tasks.end()

    async def own_fingerprint(self) -> tuple[int, int]:
        """(step, fingerprint with nonce 0) of the coordinator's replica."""
        return await self.workers.submit(Job.FINGERPRINT, self._own_fingerprint)

    def _own_fingerprint(self) -> tuple[int, int]:
        step, number = self._fingerprinted
        if step != self._replica.step:
            self._fingerprinted = step, number = self._replica.step, self._replica.fingerprint(0)
        return step, number


def _moment(driver: RoundDriver, view: SwarmView) -> Moment:
    now = driver.now()
    if view.gossip is None:
        return Moment(driver.next_round, driver.step, now)
    return Moment(int(now / view.contract.round.length_s), view.counts.beats, now)
