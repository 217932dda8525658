"""A star run: the coordinator merges what nodes contribute, round by round.

`Intake` receives contributions, `Rounds` carries out what the round machine decides, `Sealer` writes the update and
`Feed` sends it out. `Observer` keeps the trust in each node.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial

from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.events import Events, NodeCame, NodeWent
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.ledger.retention import NotKept
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.hall.measurement import Part
from thinwire_coordinator.hall.members import Member, Moment, Newest
from thinwire_coordinator.hall.run import JoinDecision, OfferedMomentum, Run
from thinwire_coordinator.hall.series import Bucket, ReadRow
from thinwire_coordinator.hall.standby.keeper import Keeper
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.star.amending import Amending, Rewinding
from thinwire_coordinator.star.announcer import Announcer
from thinwire_coordinator.star.evaluations import Evaluations
from thinwire_coordinator.star.feed import CACHE_BYTES_MAX, Feed, largest_update
from thinwire_coordinator.star.intake import Intake
from thinwire_coordinator.star.messages import UpdateMessages, encode_update_parts
from thinwire_coordinator.star.open_round import KnownFingerprints
from thinwire_coordinator.star.round.admission import ContributionClaim, why_drop_momentum
from thinwire_coordinator.star.round.announcements import Announcement, Receipt
from thinwire_coordinator.star.round.driver import RoundDriver
from thinwire_coordinator.star.round.machine import RoundMachine
from thinwire_coordinator.star.rounds import Rounds
from thinwire_coordinator.star.sealing import Sealer
from thinwire_coordinator.star.trust.observer import NO_AUDITS, Observer, TrustSettings
from thinwire_coordinator.star.view import StarView
from thinwire_proto.errors import LedgerError
from thinwire_proto.exact.amendments import rewinds
from thinwire_proto.limits import LAST_WORD_S
from thinwire_proto.wire.reasons import Reason


class Presence:
    """Tells whether a node left or was lost, by one NodeWent event for each departure.

    A node that leaves closes its streams and then calls Leave; a lost node never calls it. So the decision waits
    LAST_WORD_S seconds after the stream of a node has ended.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._silent: dict[str, asyncio.TimerHandle] = {}  # nodes without a stream that have not called Leave

    def gone(self, member: Member) -> None:
        """Note that the stream of a member has ended."""
        if member.leaving:
            self._events.tell(NodeWent(member.node_id, lost=False))
        else:
            loop = asyncio.get_running_loop()
            self._silent[member.node_id] = loop.call_later(LAST_WORD_S, self.back, member)

    def left(self, member: Member) -> None:
        if (timer := self._silent.pop(member.node_id, None)) is not None:
            timer.cancel()
            self._events.tell(NodeWent(member.node_id, lost=False))

    def back(self, member: Member) -> None:
        """Note that a member joins again, or that its time is over. If its stream had ended, it was lost."""
        if (timer := self._silent.pop(member.node_id, None)) is not None:
            timer.cancel()
            self._events.tell(NodeWent(member.node_id, lost=True))


class Star(Run):
    """wait_for: nodes to wait for before the first round. trust: see `TrustSettings`. cache_bytes_max: see `Feed`.
    read: reads an old update on a worker; None: from the state directory. keeper: None: no step waits for a standby.
    Its `upkeep` does nothing unless `keep_up` is set."""

    view: StarView

    def __init__(
        self,
        hall: Hall,
        wait_for: int = 1,
        *,
        trust: TrustSettings = NO_AUDITS,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        read: Callable[[int], UpdateMessages] | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        contract, step = hall.contract, hall.replica.step
        machine = RoundMachine(contract.round, contract.schedule.steps, hall.term.first_round, step, wait_for)
        self.driver = driver = RoundDriver(machine, hall.now)
        super().__init__(hall)
        self.keeper: Keeper = keeper or Keeper(hall.state, hall.workers, hall.now)
        self.feed = feed = Feed(
            partial(hall.workers.submit, Job.READ_UPDATE, read or partial(read_encoded, hall.state)),
            step,
            cache_bytes_max,
            largest_update(contract),
        )
        self.fingerprints = fingerprints = KnownFingerprints(contract.round.base_age_max)
        self._know_older_bases()
        self.view = view = StarView(hall, driver, feed, self.keeper)
        self.observer = observer = Observer(hall, trust)
        self.intake = intake = Intake(hall, driver, fingerprints, observer)
        self.evaluations = Evaluations(hall, driver, observer, self._announce_again)
        self._announcer = Announcer(hall, driver, fingerprints, view, intake, self.evaluations, self.keeper)
        self._presence = Presence(hall.events)
        sealer = Sealer(hall.state, hall.replica, feed, hall.workers, hall.now, self.keeper)
        self._rewinding = Rewinding(hall, driver, fingerprints, sealer, self.keeper)
        self._amending = Amending(hall, driver, intake, feed, self._rewinding, self.hold)
        rounds = Rounds(
            hall, driver, fingerprints, sealer, intake, self._announcer, self.evaluations, observer, self._amending
        )
        driver.start(rounds.handle)
        self.keeper.on_change = self.hold
        self.hold()

    def _announce_again(self, nodes: Iterable[str]) -> None:
        self._announcer.announce_again(nodes)

    def _know_older_bases(self) -> None:
        """After a restart, restore from the rows the fingerprints of the bases that nodes may still use."""
        head = self.feed.step
        after = max(rewinds(self.hall.contract), default=-1) + 1
        for row in self.state.ledger.rows(max(after, head - self.hall.contract.round.base_age_max), head):
            known = asyncio.get_running_loop().create_future()
            known.set_result(row.fingerprint)
            self.fingerprints.know(row.step, row.nonce, known)

    @property
    def rows(self) -> int:
        return self.feed.step

    def moment(self) -> Moment:
        return Moment(self.driver.machine.next_round, self.driver.machine.step, self.hall.now())

    async def join(self, member: Member, momentum: OfferedMomentum | None, replica_step: int | None) -> JoinDecision:
        leases, state, spec = self.hall.leases, self.state, self.hall.contract.round
        self._presence.back(member)
        since = momentum.sent_since if momentum else ()
        in_open_round = sum(self.intake.may_be_counted(name) for name in since)  # before the await: the round may end
        counted = await self.workers.submit(Job.COUNT_SENT, state.reading_ledger.counted_of, since)
        why = why_drop_momentum(
            kept=momentum is not None,
            holds_lease=leases.holds(member.node_id),
            counted_since=counted + in_open_round,
            age_max=spec.momentum_age_max,
            went_back=state.went_back_since(
                self.rows - spec.momentum_age_max if replica_step is None else replica_step
            ),
        )
        if why or momentum is None:
            if self.intake.may_count_from(member.node_id):
                leases.settle(member.node_id)  # its contribution may still be counted, so nobody else gets the samples
            leases.take_back(member.node_id)
        else:
            leases.resume(member.node_id, momentum.trained_through)
            leases.seen(member.node_id, self.driver.machine.step)
        is_ahead = replica_step is not None and replica_step > self.feed.step  # of rows that were lost
        take_snapshot = (
            replica_step is None
            or is_ahead
            or await self.workers.submit(Job.COMPARE_CATCH_UP, state.snapshot_is_lighter, replica_step)
        )
        return JoinDecision(self.feed.step, take_snapshot, why)

    def hold(self) -> None:
        held = self.hall.pause is not None or self.driver.going_back is not None or bool(self.keeper.holds())
        self.driver.hold(held=held)
        if self.intake.current is None:
            self._announcer.announce_to_all()

    def amend(self, orders: Sequence[Order]) -> Mapping[str, str]:
        known = len(self.hall.contract.amendments)
        refused = self._amending.take(orders)
        told = len(self.hall.contract.amendments) > known or self.driver.going_back is not None
        if told and self.intake.current is None:
            self._announcer.announce_to_all()
        return refused

    def known(self, member: Member, group: str) -> None:
        self.observer.joined(member.node_id, group)

    def pardon(self, node: str) -> None:
        self.observer.pardon(node)

    def stands(self, node: str) -> tuple[float, str]:
        return self.observer.trust_in(node), self.observer.trust.of(node).why

    async def attend(self, member: Member) -> AsyncGenerator[Announcement, None]:
        """Announcements for a node. The node is active while its caller iterates."""
        mine: Newest[Announcement] = Newest()
        member.announcements = mine
        try:
            before = self.intake.current
            self.driver.attend(member.node_id, has_weight=self.observer.trust_in(member.node_id) > 0)
            mine.put(self._announcer.idle())  # after `attend`, so that the node is not one of those that are missing
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
        self.hall.leases.seen(member.node_id, self.driver.machine.step)
        self.driver.depart(member.node_id)
        self._announcer.tell_idle_soon()

    def leave(self, member: Member, trained_through: int | None) -> None:
        member.leaving = True
        self._presence.left(member)
        self.hall.leases.resume(member.node_id, trained_through)
        self.hall.leases.give_back(member.node_id)

    def ended(self, member: Member) -> None:
        if member.announcements is not None:
            member.announcements.end()
        self.feed.wake()

    def measured(self, node: str, part: Part, loss: float) -> str:
        return self.evaluations.answered(node, part, loss)

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

    def past_reader(self) -> ReadRow:
        return bucket_of

    def stop(self) -> None:
        super().stop()
        self.driver.stop()
        self._rewinding.stop()
        self.evaluations.stop()
        self.observer.stop()


def bucket_of(number: int, body_bytes: int, tokens: int, counted: list[tuple[str, int]]) -> Bucket:
    """The bucket of a row for the page: see `ReadRow`."""
    return Bucket(number + 1, tokens=tokens, update_bytes=body_bytes, nodes=len(counted))


def read_encoded(state: RunState, step: int) -> UpdateMessages:
    """Read a sealed update from disk. Raises NotKept if it was deleted for age, LedgerError if it cannot be read."""
    row = state.fetch_ledger.row(step)
    try:
        signature = state.fetch_ledger.signatures.of_row(step)
        return encode_update_parts(step, row.canonical(), state.bodies.get(row.body_hash, row.body_bytes), signature)
    except LedgerError:
        oldest = state.snapshot_steps()[0]
        if step >= oldest:
            raise
        text = f"step {step}: the oldest update kept is that of step {oldest}; join again and take a snapshot"
        raise NotKept(text, step) from None
