"""The swarm as the coordinator sees it: who is here, which round is open, and what becomes of each contribution.

Everything here runs on the event loop and takes no time; what does is handed to workers. The rules are pure and stand
elsewhere: `rounds` (when), `admission` (whether), `leases` (what to train on), `sealing` (what comes of it).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

from thinwire_coordinator import admission
from thinwire_coordinator.feed import Feed
from thinwire_coordinator.leases import Lease, Leases
from thinwire_coordinator.ledger import Epoch
from thinwire_coordinator.members import Member, Members, NewestAnnouncement
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
from thinwire_proto.votes import Votes

log = logging.getLogger("thinwire.coordinator")


@dataclass
class OpenRound:
    """A round from its announcement until its receipts are given."""

    number: int
    step: int
    deadline: float
    nonce: int
    leases: dict[str, Lease]
    fingerprint: asyncio.Future[int]  # of the coordinator's own replica at `step`
    accepted: dict[str, Accepted] = field(default_factory=dict)
    receipts: dict[bytes, asyncio.Future[Receipt]] = field(default_factory=dict)  # by the contribution's hash


@dataclass
class Tally:
    """Counts since this process started."""

    tokens: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_fetched: int = 0
    fingerprints_compared: int = 0
    fingerprints_different: int = 0
    loss_training: float | None = None


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
        self._newest: Opened | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # what nodes do

    async def attend(self, member: Member) -> AsyncGenerator[Announcement, None]:
        """The node is active for as long as this is iterated over."""
        mine = member.announcements = NewestAnnouncement()
        mine.put(self._announcement_for(member.node_id))
        self._act(self._machine.attend(member.node_id, self._now()))
        try:
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
        current = self._round
        k = self.contract.demo.k
        payload_bytes_max = contribution_bytes_max(self.layout, k)
        refusal = admission.at_the_door(
            admission.Claim(header.epoch, header.round, header.step, header.samples, header.payload_bytes),
            self.epoch.number,
            self._machine.next_round,
            self._facts(current, member, payload_bytes_max) if current else None,
        )
        if refusal is not None or current is None:
            assert refusal is not None
            return self._refuse(member, current, refusal)
        try:
            payload = await _read(header.payload_bytes, payload_bytes_max, parts)
            if header.fingerprint != await asyncio.shield(current.fingerprint):
                return self._refuse_replica(member, current)
            votes = await self.workers.merge.submit(decode_votes, payload, self.layout, k)
        except PayloadError as error:
            return self._refuse(member, current, admission.Refusal(Receipt.REASON_MALFORMED, str(error)))
        self.tally.fingerprints_compared += 1
        member.replica_equal = True

        in_time, actions = self._machine.deliver(member.node_id, current.number, self._now())
        if not in_time:
            self._act(actions)
            late = admission.Refusal(Receipt.REASON_LATE, f"round {current.number} ended before this was checked")
            return self._refuse(member, current, late)
        receipt = self._accept(member, current, header, payload, votes)
        self._act(actions)
        return await asyncio.shield(receipt)

    async def ask_receipt(self, name: bytes) -> Receipt:
        """The receipt of a contribution by its hash, whichever process it was given to."""
        if self._round and name in self._round.receipts:
            return await asyncio.shield(self._round.receipts[name])
        step = await self.workers.disk.submit(self.state.ledger.step_of_contribution, name)
        if step is None:
            return _not_counted(Receipt.REASON_UNKNOWN, "it is in no sealed update, and its round is over")
        return Receipt(outcome=Receipt.OUTCOME_COUNTED, step=step)

    def _accept(
        self, member: Member, current: OpenRound, header: ContributionHeader, payload: bytes, votes: Votes
    ) -> asyncio.Future[Receipt]:
        lease = current.leases[member.node_id]
        weight = admission.weight(header.samples, lease.count, self.contract.round.weight_max)
        name = contribution_hash(self.contract.hash, self.epoch.number, current.number, member.node_id, payload)
        counted = Counted(member.node_id, name, weight, header.samples)
        current.accepted[member.node_id] = Accepted(counted, votes, header.loss)
        receipt = current.receipts[name] = asyncio.get_running_loop().create_future()
        return receipt

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
        return await self.workers.replica.submit(lambda: (self._replica.step, self._replica.fingerprint(0)))

    # what the round machine decides

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Opened):
                self._open(action)
            elif isinstance(action, Gathered):
                assert self._round is not None
                task = asyncio.get_running_loop().create_task(self._seal(self._round, action))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self._void(action)
        self._set_timer()

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
        )
        for node in self._round.leases:
            self._announce(node)

    async def _seal(self, current: OpenRound, gathered: Gathered) -> None:
        try:
            sealed = SealedRound(
                gathered.round, self.epoch.number, gathered.step, current.nonce, await current.fingerprint
            )
            accepted = [current.accepted[node] for node in gathered.nodes]
            await self._sealer.seal(sealed, accepted, self._leases.cursor)
        except Exception as error:  # noqa: BLE001 - a task's boundary: the coordinator ends with it, see `failed`
            if not self.failed.done():
                self.failed.set_exception(error)
            return
        self._count(accepted)
        for entry in accepted:
            receipt = Receipt(outcome=Receipt.OUTCOME_COUNTED, step=gathered.step)
            current.receipts[entry.counted.contribution].set_result(receipt)
        log.debug("round %d: step %d sealed, %d contributions", gathered.round, gathered.step + 1, len(accepted))
        self._round = None
        self.sealed.set()
        self._act(self._machine.sealed(self._now()))
        if self._machine.phase is Phase.COMPLETE:
            log.info("the run is complete: %d updates are sealed", self._machine.step)
            self._announce_standing()

    def _void(self, voided: Voided) -> None:
        current, self._round = self._round, None
        assert current is not None
        log.warning("round %d is void: %s", voided.round, voided.why)
        self.workers.disk.submit(self.state.ledger.record_void, self.epoch.number, voided.round, voided.why)
        for entry in current.accepted.values():
            self.members.by_id[entry.counted.node].not_counted += 1
        for receipt in current.receipts.values():
            receipt.set_result(_not_counted(Receipt.REASON_VOID, f"round {voided.round} is void: {voided.why}"))
        self._announce_standing()

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

    # the small parts

    def _facts(self, current: OpenRound, member: Member, payload_bytes_max: int) -> admission.RoundFacts:
        lease = current.leases.get(member.node_id)
        return admission.RoundFacts(
            round=current.number,
            step=current.step,
            leased_samples=lease.count if lease else None,
            contributed=member.node_id in current.accepted,
            payload_bytes_max=payload_bytes_max,
        )

    def _refuse(self, member: Member, current: OpenRound | None, refusal: admission.Refusal) -> Receipt:
        member.not_counted += 1
        log.info("%s: not counted: %s", member.name, refusal.text)
        if refusal.reason == Receipt.REASON_LATE:
            self._machine.heard(member.node_id)  # its contribution to the round that is open may still come
        elif current is not None and current is self._round and member.node_id not in current.accepted:
            self._act(self._machine.excuse(member.node_id, self._now()))
        return _not_counted(refusal.reason, refusal.text)

    def _refuse_replica(self, member: Member, current: OpenRound) -> Receipt:
        self.tally.fingerprints_compared += 1
        self.tally.fingerprints_different += 1
        member.replica_equal = False
        log.warning("%s: its replica differs at step %d; its votes are not merged", member.name, current.step)
        text = f"the parameters that this was computed on are not those of step {current.step}: fetch them anew"
        return self._refuse(member, current, admission.Refusal(Receipt.REASON_REPLICA_DIFFERS, text))

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

    def _announce_standing(self) -> None:
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


async def _read(size: int, size_max: int, parts: AsyncIterator[ContributionPart]) -> bytes:
    """The payload of a contribution, part by part. Raises PayloadError."""
    assembly = Assembly(size, size_max, "contribution")
    async for part in parts:
        assembly.add(part.data)
    return assembly.whole()


def _not_counted(reason: Receipt.Reason.ValueType, text: str) -> Receipt:
    return Receipt(outcome=Receipt.OUTCOME_NOT_COUNTED, reason=reason, text=text)
