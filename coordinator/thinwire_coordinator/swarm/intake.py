"""Where a contribution comes in: judged at the door by its header, read part by part, compared, decoded, and given
to the round's merger. Every one gets a receipt, at once or when its round is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from thinwire_coordinator.ledger.ledger import Term
from thinwire_coordinator.round import admission
from thinwire_coordinator.round.driver import RoundDriver
from thinwire_coordinator.swarm.events import ContributionRefused, ContributionTaken, FingerprintCompared
from thinwire_coordinator.swarm.fingerprints import KnownFingerprint
from thinwire_coordinator.swarm.members import Member
from thinwire_coordinator.swarm.open_round import OpenRound
from thinwire_coordinator.swarm.registry import Registry
from thinwire_coordinator.swarm.sealing import Accepted
from thinwire_coordinator.swarm.tasks import Tasks
from thinwire_coordinator.swarm.workers import Workers
from thinwire_proto.contract import Contract
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.votes import Votes
from thinwire_proto.limits import READ_GRACE_S
from thinwire_proto.wire.codec import contribution_bytes_max, decode_votes
from thinwire_proto.wire.parts import Assembly
from thinwire_proto.wire.rows import Counted, contribution_hash
from thinwire_proto.wire.service_pb2 import ContributionHeader, ContributionPart, Receipt

log = logging.getLogger("thinwire.coordinator")

Parts = Callable[[], AsyncIterator[ContributionPart]]
UNMERGED_MAX = 2
"""Contributions that are decoded and not merged yet. Two keep the merge thread busy; more would only take memory, each
several times what it has as a payload."""


class Intake:
    """`round` is the one that is open, or whose update is being sealed."""

    def __init__(
        self, contract: Contract, term: Term, registry: Registry, driver: RoundDriver, workers: Workers, tasks: Tasks
    ) -> None:
        self._contract = contract
        self._term = term
        self._registry = registry
        self._driver = driver
        self._workers = workers
        self._tasks = tasks
        self._layout = TileLayout(contract.parameters)
        self._room = asyncio.Semaphore(UNMERGED_MAX)
        self._payload_bytes_max = contribution_bytes_max(self._layout, contract.demo.k, contract.demo.magnitude)
        self.round: OpenRound | None = None

    async def contribute(
        self, member: Member, header: ContributionHeader, parts: AsyncIterator[ContributionPart]
    ) -> Receipt:
        """Take a contribution in and return its receipt, when its round is over."""
        member.dropped += header.dropped
        member.compute_s += header.compute_ms / 1000
        current = self.round
        refusal = self._at_the_door(member, header, current)
        if refusal is not None or current is None:
            assert refusal is not None
            return self._refuse(member, header, current, refusal)
        current.arriving.add(header.session)
        began = self._driver.now()
        try:
            patience_s = current.deadline + READ_GRACE_S - self._driver.now()
            payload = await _read(header.payload_bytes, self._payload_bytes_max, parts, patience_s)
        except PayloadError as error:
            refusal = admission.Refusal(Receipt.REASON_MALFORMED, str(error))
            return self._refuse(member, header, current, refusal)
        except asyncio.TimeoutError:
            refusal = admission.Refusal(Receipt.REASON_LATE, f"round {current.number} ended while this was sent")
            return self._refuse(member, header, current, refusal)
        finally:
            current.arriving.discard(header.session)
        if self._registry.members.by_session.get(header.session) is not member:
            # it may have asked for the receipt of this one since, and been told that there is none
            left = admission.Refusal(Receipt.REASON_NO_LEASE, "the node has joined anew since this was sent")
            return self._not_counted(member, left)
        receive_s = self._driver.now() - began
        return await asyncio.shield(self._judge(member, header, current, payload, receive_s))

    async def ask_receipt(self, name: bytes) -> Receipt | None:
        """The receipt of a contribution to the round that is open, or that is being sealed, when there is one."""
        if self.round and name in self.round.receipts:
            return await asyncio.shield(self.round.receipts[name])
        return None

    def may_be_counted(self, name: bytes) -> bool:
        """Whether a contribution is in the open round, so that nobody can say yet what becomes of it."""
        return self.round is not None and name in self.round.receipts

    def close(self, current: OpenRound, receipt: Receipt) -> None:
        """The round is over: everybody who is in it gets this receipt."""
        for entry in current.accepted.values():
            answer = Receipt()
            answer.CopyFrom(receipt)
            current.answer(entry.counted.contribution, answer)

    def _at_the_door(
        self, member: Member, header: ContributionHeader, current: OpenRound | None
    ) -> admission.Refusal | None:
        claim = admission.Claim(
            header.term, header.round, header.step, header.base_step, header.samples, header.payload_bytes
        )
        facts = self._facts(current, member, _mark(header)) if current else None
        return admission.at_the_door(claim, self._term.number, self._driver.machine.next_round, facts)

    def _facts(self, current: OpenRound, member: Member, trained_through: int | None) -> admission.RoundFacts:
        leases, spec = self._registry.leases, self._contract.round
        full = len(current.accepted) + len(current.arriving) >= spec.nodes_max  # of nodes that were forgotten since
        holds = leases.holds(member.node_id) and not full
        return admission.RoundFacts(
            round=current.number,
            step=current.step,
            base_age_max=spec.base_age_max,
            leased_samples=leases.reported_samples(member.node_id, trained_through) if holds else None,
            contributed=member.node_id in current.accepted or member.session in current.arriving,
            payload_bytes_max=self._payload_bytes_max,
        )

    def _judge(
        self, member: Member, header: ContributionHeader, current: OpenRound, payload: bytes, receive_s: float
    ) -> asyncio.Future[Receipt]:
        """A contribution has arrived whole: its receipt, known by its hash from now on, whoever is still listening."""
        name = contribution_hash(self._contract.hash, self._term.number, current.number, member.node_id, payload)
        if name in current.receipts:
            return current.receipts[name]
        receipt = current.receipts[name] = asyncio.get_running_loop().create_future()
        arrived = self._driver.now()
        current.arrived_us[name] = round(arrived * 1e6)

        async def judge() -> None:
            found = await self._check(member, header, current, payload, name)
            if isinstance(found, admission.Refusal):
                current.answer(name, self._refuse(member, header, current, found))
                return
            self._registry.events.tell(
                ContributionTaken(
                    node_id=member.node_id,
                    round=current.number,
                    payload_bytes=len(payload),
                    components=len(found),
                    after_open_s=arrived - current.opened,
                    before_deadline_s=current.deadline - arrived,
                    receive_s=receive_s,
                )
            )

        self._tasks.keep(judge())
        return receipt

    async def _check(
        self, member: Member, header: ContributionHeader, current: OpenRound, payload: bytes, name: bytes
    ) -> admission.Refusal | Votes:
        """Compare the base, decode the votes, and take them into the round if it is still open."""
        over = admission.Refusal(Receipt.REASON_LATE, f"round {current.number} ended before this was checked")
        base = self._registry.fingerprints.at(header.step)
        if base is None or current is not self.round:
            return over  # rounds stand on later steps by now, or, after a void one, on this step under another nonce
        if not await self._replica_is_equal(member, header, base):
            log.warning("%s: its replica differs at step %d; its votes are not merged", member.name, header.step)
            text = f"the parameters that this was computed on are not those of step {header.step}: fetch them anew"
            return admission.Refusal(Receipt.REASON_REPLICA_DIFFERS, text)
        await self._room.acquire()
        merging: asyncio.Future[None] | None = None
        try:
            kind = self._contract.demo.magnitude
            votes = await self._workers.merge.submit(decode_votes, payload, self._layout, current.k, kind)

            def take_in() -> None:
                nonlocal merging
                spec = self._contract.round
                weight = admission.weight(header.samples, spec.samples, spec.weight_max)
                counted = Counted(member.node_id, name, weight, header.samples)
                current.accepted[member.node_id] = Accepted(counted, header.loss)
                self._registry.leases.report(member.node_id, _mark(header))
                # merged as they come, in the order in which the merge thread gets them; the seal is behind all of them
                merging = self._workers.merge.submit(current.merger.add, votes, weight)
                merging.add_done_callback(lambda _: self._room.release())
                self._tasks.must_succeed(merging)

            return votes if self._driver.deliver(member.node_id, current.number, take_in) else over
        except PayloadError as error:
            return admission.Refusal(Receipt.REASON_MALFORMED, str(error))
        finally:
            if merging is None:
                self._room.release()

    async def _replica_is_equal(self, member: Member, header: ContributionHeader, base: KnownFingerprint) -> bool:
        tally = self._registry.tally
        equal = header.fingerprint == await asyncio.shield(base.fingerprint)
        member.replica_equal = equal
        tally.fingerprints_compared += 1
        tally.fingerprints_different += not equal
        self._registry.events.tell(FingerprintCompared(member.node_id, equal))
        return equal

    def _refuse(
        self, member: Member, header: ContributionHeader, current: OpenRound | None, refusal: admission.Refusal
    ) -> Receipt:
        driver = self._driver
        if refusal.reason != Receipt.REASON_DUPLICATE:  # the one before it may still be counted
            self._registry.leases.report(member.node_id, _mark(header))  # it lives, and has this in its momentum
        if refusal.reason == Receipt.REASON_LATE:
            driver.machine.heard(member.node_id)  # its contribution to the round that is open may still come
        elif refusal.reason != Receipt.REASON_DUPLICATE and current is not None and current is self.round:
            driver.excuse(member.node_id)
        receipt = self._not_counted(member, refusal)
        receipt.arrived_us = driver.now_us()
        return receipt

    def _not_counted(self, member: Member, refusal: admission.Refusal) -> Receipt:
        member.not_counted += 1
        self._registry.events.tell(ContributionRefused(member.node_id, refusal.reason))
        log.info("%s: not counted: %s", member.name, refusal.text)
        return not_counted(refusal.reason, refusal.text)


def not_counted(reason: Receipt.Reason.ValueType, text: str) -> Receipt:
    return Receipt(outcome=Receipt.OUTCOME_NOT_COUNTED, reason=reason, text=text)


def _mark(header: ContributionHeader) -> int | None:
    return header.trained_through if header.HasField("trained_through") else None


async def _read(size: int, size_max: int, parts: AsyncIterator[ContributionPart], patience_s: float) -> bytes:
    """The payload of a contribution, part by part. Raises PayloadError, or TimeoutError when patience is at an end."""
    assembly = Assembly(size, size_max, "contribution")

    async def read() -> None:
        async for part in parts:
            if not part.data and size:
                raise PayloadError("contribution: a part is empty")
            assembly.add(part.data)

    await asyncio.wait_for(read(), patience_s)
    return assembly.whole()
