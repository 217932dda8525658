"""The swarm as the coordinator sees it: who is here, which round is open, and what becomes of each contribution.

Everything here runs on the event loop and takes no time; what does is handed to workers. The rules are pure and stand
elsewhere: `rounds` (when), `admission` (whether), `leases` (what to train on), `sealing` (what comes of it).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any

from thinwire_coordinator import admission
from thinwire_coordinator.feed import Feed
from thinwire_coordinator.leases import Lease, Leases
from thinwire_coordinator.ledger import Epoch
from thinwire_coordinator.members import Member, Members, NewestAnnouncement
from thinwire_coordinator.open_round import OpenRound, Tally
from thinwire_coordinator.rounds import Action, Gathered, Opened, Phase, RoundMachine, Voided
from thinwire_coordinator.sealing import Accepted, SealedRound, Sealer
from thinwire_coordinator.state import State
from thinwire_coordinator.workers import Workers
from thinwire_proto.codec import contribution_bytes_max, decode_votes
from thinwire_proto.errors import PayloadError
from thinwire_proto.parts import Assembly
from thinwire_proto.replica import Replica
from thinwire_proto.rows import Counted, contribution_hash
from thinwire_proto.service_pb2 import Announcement, ContributionHeader, ContributionPart, Receipt
from thinwire_proto.service_pb2 import Lease as LeaseMessage
from thinwire_proto.votes import Merger

log = logging.getLogger("thinwire.coordinator")

READ_GRACE_S = 1.0
"""What arrives so soon after the end of its round is still read, to be told that it is late."""


class Swarm:
    def __init__(
        self, state: State, replica: Replica, epoch: Epoch, workers: Workers, feed: Feed, wait_for: int
    ) -> None:
        contract = state.contract
        self.contract = contract
        self.state = state
        self.epoch = epoch
        self.feed = feed
        self.members = Members(contract.round.nodes_max)
        self.tally = Tally()
        self.measured_step = 0
        """The newest step whose held-out loss was measured, finite or not."""
        self.sealed = asyncio.Event()
        """Set at every sealed step; for whoever looks after snapshots and evaluations."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception if a round cannot be sealed."""
        self._replica = replica
        self.workers = workers
        self.layout = replica.layout
        self._machine = RoundMachine(contract.round, contract.schedule.steps, epoch.first_round, replica.step, wait_for)
        self._sealer = Sealer(state, replica, feed, workers)
        self._leases = Leases(state.ledger.lease_cursor)
        self._round: OpenRound | None = None
        self._fingerprinted = (-1, 0)
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # what nodes do

    async def attend(self, member: Member) -> AsyncGenerator[Announcement, None]:
        """The node is active for as long as this is iterated over."""
        mine = member.announcements = NewestAnnouncement()
        try:
            mine.put(self._announcement_for(member.node_id))
            self._act(self._machine.attend(member.node_id, self._now()))
            while True:
                yield await mine.get()
        finally:
            if member.announcements is mine:  # and not a newer stream of the same node
                member.announcements = None
                self._act(self._machine.depart(member.node_id, self._now()))

    async def contribute(
        self, member: Member, header: ContributionHeader, parts: AsyncIterator[ContributionPart]
    ) -> Receipt:
        """Take a contribution in and return its receipt, when its round is over."""
        member.dropped += header.dropped
        member.compute_s += header.compute_ms / 1000
        current = self._round
        payload_bytes_max = contribution_bytes_max(self.layout, self.contract.demo.k)
        refusal = admission.at_the_door(
            admission.Claim(header.epoch, header.round, header.step, header.samples, header.payload_bytes),
            self.epoch.number,
            self._machine.next_round,
            self._facts(current, member, payload_bytes_max) if current else None,
        )
        if refusal is not None or current is None:
            assert refusal is not None
            return self._refuse(member, current, refusal)
        current.arriving.add(header.session)
        try:
            payload = await _read(header.payload_bytes, payload_bytes_max, parts, current.deadline + READ_GRACE_S)
        except PayloadError as error:
            return self._refuse(member, current, admission.Refusal(Receipt.REASON_MALFORMED, str(error)))
        except asyncio.TimeoutError:
            late = admission.Refusal(Receipt.REASON_LATE, f"round {current.number} ended while this was sent")
            return self._refuse(member, current, late)
        finally:
            current.arriving.discard(header.session)
        if self.members.by_session.get(header.session) is not member:
            # it may have asked for the receipt of this one since, and been told that there is none
            left = admission.Refusal(Receipt.REASON_NO_LEASE, "the node has joined anew since this was sent")
            return self._refuse(member, None, left)
        return await asyncio.shield(self._judge(member, header, current, payload))

    def _judge(
        self, member: Member, header: ContributionHeader, current: OpenRound, payload: bytes
    ) -> asyncio.Future[Receipt]:
        """A contribution has arrived whole: its receipt, known by its hash from now on, whoever is still listening."""
        name = contribution_hash(self.contract.hash, self.epoch.number, current.number, member.node_id, payload)
        if name in current.receipts:
            return current.receipts[name]
        receipt = current.receipts[name] = asyncio.get_running_loop().create_future()

        async def judge() -> None:
            try:
                refusal = await self._check(member, header, current, payload, name)
            except Exception as error:  # noqa: BLE001 - a task's boundary: the coordinator ends with it, see `failed`
                self._fail(error)
                return
            if refusal is not None:
                receipt.set_result(self._refuse(member, current, refusal))

        self._keep(judge())
        return receipt

    async def _check(
        self, member: Member, header: ContributionHeader, current: OpenRound, payload: bytes, name: bytes
    ) -> admission.Refusal | None:
        """Compare the base, decode the votes, and take them into the round if it is still open."""
        self.tally.fingerprints_compared += 1
        member.replica_equal = header.fingerprint == await asyncio.shield(current.fingerprint)
        if not member.replica_equal:
            self.tally.fingerprints_different += 1
            log.warning("%s: its replica differs at step %d; its votes are not merged", member.name, current.step)
            text = f"the parameters that this was computed on are not those of step {current.step}: fetch them anew"
            return admission.Refusal(Receipt.REASON_REPLICA_DIFFERS, text)
        try:
            votes = await self.workers.merge.submit(decode_votes, payload, self.layout, self.contract.demo.k)
        except PayloadError as error:
            return admission.Refusal(Receipt.REASON_MALFORMED, str(error))
        in_time, actions = self._machine.deliver(member.node_id, current.number, self._now())
        if in_time:
            lease = current.leases[member.node_id]
            weight = admission.weight(header.samples, lease.count, self.contract.round.weight_max)
            counted = Counted(member.node_id, name, weight, header.samples)
            current.accepted[member.node_id] = Accepted(counted, header.loss)
            # merged as they come, in the order in which the merge thread gets them; the seal is behind all of them
            self._must_succeed(self.workers.merge.submit(current.merger.add, votes, weight))
        self._act(actions)
        if not in_time:
            return admission.Refusal(Receipt.REASON_LATE, f"round {current.number} ended before this was checked")
        return None

    async def ask_receipt(self, name: bytes) -> Receipt:
        """The receipt of a contribution by its hash, whichever process it was given to.

        A node asks in a session after the one in which it sent: what had not arrived whole by then never will.
        """
        if self._round and name in self._round.receipts:
            return await asyncio.shield(self._round.receipts[name])
        step = await self.workers.disk.submit(self.state.ledger.step_of_contribution, name)
        if step is None:
            return _not_counted(Receipt.REASON_UNKNOWN, "it is in no sealed update, and in no round that is open")
        return Receipt(outcome=Receipt.OUTCOME_COUNTED, step=step)

    # what the organizer asks

    @property
    def condition(self) -> str:
        if self._machine.phase is Phase.COMPLETE:
            return "complete"
        missing = self._machine.missing_nodes if self._round is None else 0
        return f"waiting for {missing} more node{'s' if missing > 1 else ''}" if missing else "training"

    @property
    def round_number(self) -> int:
        return max(self._machine.next_round - 1, 0)

    async def own_fingerprint(self) -> tuple[int, int]:
        """(step, fingerprint under the nonce 0) of the coordinator's replica."""
        return await self.workers.replica.submit(self._own_fingerprint)

    def _own_fingerprint(self) -> tuple[int, int]:
        step, number = self._fingerprinted
        if step != self._replica.step:
            self._fingerprinted = step, number = self._replica.step, self._replica.fingerprint(0)
        return step, number

    # what the round machine decides

    def _act(self, actions: list[Action]) -> None:
        try:
            for action in actions:
                if isinstance(action, Opened):
                    self._open(action)
                elif isinstance(action, Gathered):
                    assert self._round is not None
                    self._keep(self._seal(self._round, action))
                else:
                    self._void(action)
            self._set_timer()
        except Exception as error:  # noqa: BLE001 - half an action would leave the swarm without a round for ever
            self._fail(error)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task to its end; the loop itself holds tasks only weakly."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _open(self, opened: Opened) -> None:
        samples = self.contract.round.samples
        nonce = secrets.randbits(64)
        self._round = OpenRound(
            number=opened.round,
            step=opened.step,
            deadline=opened.deadline,
            nonce=nonce,
            leases={node: self._leases.grant(samples) for node in opened.nodes},
            fingerprint=self.workers.replica.submit(self._replica.fingerprint, nonce),
            merger=Merger(self.layout.components),
        )
        written = self.workers.disk.submit(self.state.ledger.record_lease_cursor, self._leases.cursor)
        self._must_succeed(written)
        # announced when it is on disk which samples were granted, so that nobody gets them again after a crash
        written.add_done_callback(lambda _: self._announce_all())

    async def _seal(self, current: OpenRound, gathered: Gathered) -> None:
        try:
            sealed = SealedRound(
                gathered.round, self.epoch.number, gathered.step, current.nonce, await current.fingerprint
            )
            accepted = [current.accepted[node] for node in gathered.nodes]
            counted = tuple(entry.counted for entry in accepted)
            self._must_succeed(await self._sealer.seal(sealed, counted, current.merger))
            self._after_seal(current, accepted, gathered.why)
        except Exception as error:  # noqa: BLE001 - a task's boundary: the coordinator ends with it, see `failed`
            self._fail(error)

    def _after_seal(self, current: OpenRound, accepted: list[Accepted], why: str) -> None:
        self._count(accepted)
        for entry in accepted:
            receipt = Receipt(outcome=Receipt.OUTCOME_COUNTED, step=current.step)
            current.receipts[entry.counted.contribution].set_result(receipt)
        log.debug("round %d over (%s): step %d, %d contributions", current.number, why, current.step, len(accepted))
        self._round = None
        self.sealed.set()
        self._act(self._machine.sealed(self._now()))
        if self._machine.phase is Phase.COMPLETE:
            log.info("the run is complete: %d updates are sealed", self._machine.step)
            self._announce_all()

    def _void(self, voided: Voided) -> None:
        current, self._round = self._round, None
        assert current is not None
        log.warning("round %d is void: %s", voided.round, voided.why)
        self._must_succeed(
            self.workers.disk.submit(self.state.ledger.record_void, self.epoch.number, voided.round, voided.why)
        )
        for node, entry in current.accepted.items():
            if member := self.members.by_id.get(node):
                member.not_counted += 1
            receipt = _not_counted(Receipt.REASON_VOID, f"round {voided.round} is void: {voided.why}")
            current.receipts[entry.counted.contribution].set_result(receipt)
        self._announce_all()

    def _count(self, accepted: list[Accepted]) -> None:
        tokens_a_sample = self.contract.model.context
        samples = sum(entry.counted.samples for entry in accepted)
        for entry in accepted:
            member = self.members.by_id.get(entry.counted.node)
            if member is not None:
                member.counted += 1
                member.tokens += entry.counted.samples * tokens_a_sample
        self.tally.tokens += samples * tokens_a_sample
        self.tally.loss_training = sum(entry.loss * entry.counted.samples for entry in accepted) / samples

    def _must_succeed(self, work: asyncio.Future[None]) -> None:
        """Nobody waits for this work, but without it the coordinator cannot go on."""

        def look(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                self._fail(error)

        work.add_done_callback(look)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    # the small parts

    def _facts(self, current: OpenRound, member: Member, payload_bytes_max: int) -> admission.RoundFacts:
        lease = current.leases.get(member.node_id)
        return admission.RoundFacts(
            round=current.number,
            step=current.step,
            leased_samples=lease.count if lease else None,
            contributed=member.node_id in current.accepted or member.session in current.arriving,
            payload_bytes_max=payload_bytes_max,
        )

    def _refuse(self, member: Member, current: OpenRound | None, refusal: admission.Refusal) -> Receipt:
        member.not_counted += 1
        log.info("%s: not counted: %s", member.name, refusal.text)
        if refusal.reason == Receipt.REASON_LATE:
            self._machine.heard(member.node_id)  # its contribution to the round that is open may still come
        elif refusal.reason == Receipt.REASON_DUPLICATE:
            pass  # the one before it may still be counted
        elif current is not None and current is self._round and member.node_id not in current.accepted:
            self._act(self._machine.excuse(member.node_id, self._now()))
        return _not_counted(refusal.reason, refusal.text)

    def _announcement(self, current: OpenRound, lease: Lease) -> Announcement:
        return Announcement(
            state=Announcement.STATE_ROUND,
            epoch=self.epoch.number,
            round=current.number,
            step=current.step,
            time_left_ms=max(0, round((current.deadline - self._now()) * 1000)),
            k=self.contract.demo.k,
            nonce=current.nonce,
            lease=LeaseMessage(start=lease.start, count=lease.count),
        )

    def _standing_announcement(self) -> Announcement:
        """What a node hears that has no lease in an open round."""
        complete = self._machine.phase is Phase.COMPLETE
        state = Announcement.STATE_COMPLETE if complete else Announcement.STATE_WAITING
        text = self.condition if self._round is None else "a round is open; the next one is yours too"
        return Announcement(state=state, epoch=self.epoch.number, step=self._machine.step, text=text)

    def _announcement_for(self, node: str) -> Announcement:
        lease = self._round.leases.get(node) if self._round else None
        return self._announcement(self._round, lease) if self._round and lease else self._standing_announcement()

    def _announce(self, node: str) -> None:
        member = self.members.by_id.get(node)
        if member is not None and member.announcements is not None:
            member.announcements.put(self._announcement_for(node))

    def _announce_all(self) -> None:
        for node in self.members.by_id:
            self._announce(node)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._machine.deadline
        self._timer = None
        if deadline is not None:
            loop = asyncio.get_running_loop()
            # a millisecond behind it: what arrives at the very deadline is still counted
            self._timer = loop.call_at(deadline + 0.001, lambda: self._act(self._machine.tick(self._now())))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def _read(size: int, size_max: int, parts: AsyncIterator[ContributionPart], until: float) -> bytes:
    """The payload of a contribution, part by part. Raises PayloadError, or TimeoutError at `until` (loop time)."""
    assembly = Assembly(size, size_max, "contribution")

    async def read() -> None:
        async for part in parts:
            if not part.data and size:
                raise PayloadError("contribution: a part is empty")
            assembly.add(part.data)

    await asyncio.wait_for(read(), until - asyncio.get_running_loop().time())
    return assembly.whole()


def _not_counted(reason: Receipt.Reason.ValueType, text: str) -> Receipt:
    return Receipt(outcome=Receipt.OUTCOME_NOT_COUNTED, reason=reason, text=text)
