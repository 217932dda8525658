"""Receives the contributions to one round at a time, each from its call to its receipt.

A contribution is refused by its header, while its payload is read, by its signature, or by the check of its content.
Otherwise its receipt comes when the round is over. `docs/contribution.md` has the table of its states.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from thinwire_common.logs import tell
from thinwire_common.within import Within
from thinwire_coordinator.hall.byte_budget import ByteBudget, Reservation
from thinwire_coordinator.hall.events import ContributionOffered, ContributionRefused, ContributionTaken
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.ledger.signatures import NodeSignature
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.star.checking import Checker
from thinwire_coordinator.star.open_round import KnownFingerprints, OpenRound
from thinwire_coordinator.star.round import admission
from thinwire_coordinator.star.round.admission import ContributionClaim, Refusal
from thinwire_coordinator.star.round.announcements import Receipt
from thinwire_coordinator.star.round.contributions import Contribution, ContributionState, Round
from thinwire_coordinator.star.round.driver import RoundDriver
from thinwire_coordinator.star.trust.observer import Observer
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.votes import Merges
from thinwire_proto.limits import READ_GRACE_S
from thinwire_proto.wire.codec import contribution_bytes_max
from thinwire_proto.wire.parts import Assembly
from thinwire_proto.wire.reasons import Reason
from thinwire_proto.wire.rows import contribution_hash

log = logging.getLogger("thinwire.coordinator")

ARRIVING_BYTES_MAX = 256 << 20
"""Payloads that arrive or are being checked, together. It is more for contributions of which four would not fit."""
ARRIVING_LEAST = 4


def arriving_bytes_max(nodes_max: int, payload_bytes_max: int) -> int:
    """Bound on the payloads in memory: one of each node if that fits, else ARRIVING_BYTES_MAX."""
    return max(ARRIVING_LEAST * payload_bytes_max, min(nodes_max * payload_bytes_max, ARRIVING_BYTES_MAX))


class Intake:
    """`current` is the round that is open or being sealed. room: the memory of payloads. payload_bytes_max: of one of
    them."""

    def __init__(self, hall: Hall, driver: RoundDriver, fingerprints: KnownFingerprints, observer: Observer) -> None:
        self.hall = hall
        self.driver = driver
        self.observer = observer
        self.checker = Checker(hall, driver, fingerprints, observer)
        self.payload_bytes_max = self._payload_bytes_max()
        self.room = ByteBudget(arriving_bytes_max(hall.contract.round.nodes_max, self.payload_bytes_max))
        self.current: OpenRound | None = None

    def _payload_bytes_max(self) -> int:
        demo = self.hall.contract.demo
        return contribution_bytes_max(
            self.hall.layout, demo.k, demo.magnitude, whole=demo.sends_whole_tiles, levels=demo.vote_levels
        )

    def amend(self) -> None:
        """Take the bounds of the contract that is in force now."""
        self.payload_bytes_max = self._payload_bytes_max()
        self.room.grow(arriving_bytes_max(self.hall.contract.round.nodes_max, self.payload_bytes_max))

    def open(self, opened: Round, merger: Merges) -> None:
        """Accept contributions to this round from now on."""
        self.current = OpenRound(opened, merger)

    def close(self, receipt: Receipt) -> None:
        """End the round: give this receipt to every accepted contribution."""
        current, self.current = self.current, None
        assert current is not None
        current.close(receipt)

    async def contribute(self, member: Member, claim: ContributionClaim, parts: AsyncIterator[bytes]) -> Receipt:
        """Receive a contribution and return its receipt, which may take until its round is over."""
        self.observer.came(member.node_id)
        return await Arrival(self, member, claim).run(parts)

    async def ask_receipt(self, name: bytes) -> Receipt | None:
        """Wait for the receipt of a contribution to the current round; None if the round has no such contribution."""
        receipt = self.current.receipt(name) if self.current else None
        return None if receipt is None else await asyncio.shield(receipt)

    def may_be_counted(self, name: bytes) -> bool:
        """Whether a contribution is in the current round, so that its outcome may still be open."""
        found = self.current.round.named(name) if self.current is not None else None
        return found is not None and found.state is not ContributionState.ANSWERED

    def may_count_from(self, node: str) -> bool:
        """Whether the current round has a complete contribution of a node that may still be counted."""
        return self.current is not None and self.current.round.has_whole_from(node)


class Arrival:
    """A contribution to the round that is open as it comes, if one is."""

    def __init__(self, intake: Intake, member: Member, claim: ContributionClaim) -> None:
        self._intake = intake
        self._member = member
        self._claim = claim
        self._current = intake.current

    async def run(self, parts: AsyncIterator[bytes]) -> Receipt:
        """Take the payload in, and return the receipt, which may take until the round is over."""
        refusal, current = self._check_header(), self._current
        if refusal is None or refusal.reason is not Reason.DUPLICATE:
            self._count_claim()
        if refusal is not None or current is None:
            assert refusal is not None
            return self._refuse(refusal)
        contribution = self._begin(current)
        memory = self._intake.room.reservation(self._claim.payload_bytes)
        receipt: Receipt | asyncio.Future[Receipt] | None = None
        try:
            receipt = await self._take_in(current, contribution, memory, parts)
        finally:
            if not isinstance(receipt, asyncio.Future):  # otherwise the check needs the payload, and then releases it
                memory.release()
        return await asyncio.shield(receipt) if isinstance(receipt, asyncio.Future) else receipt

    @property
    def _is_joined(self) -> bool:
        """Whether the session of the contribution still counts."""
        return self._intake.hall.members.by_session.get(self._claim.session) is self._member

    # the header

    def _check_header(self) -> Refusal | None:
        intake, current, claim, member = self._intake, self._current, self._claim, self._member
        facts = None
        if current is not None:
            leases = intake.hall.leases
            contributed = current.round.has_from(member.node_id, member.session)
            full = current.round.full and not contributed  # full of contributions from nodes that were forgotten since
            holds = leases.holds(member.node_id) and not full
            facts = admission.RoundFacts(
                round=current.round.number,
                step=current.round.step,
                base_age_max=intake.hall.contract.round.base_age_max,
                leased_samples=leases.reported_samples(member.node_id, claim.trained_through) if holds else None,
                contributed=contributed,
                payload_bytes_max=intake.payload_bytes_max,
            )
        return admission.check_header(claim, intake.hall.term.number, intake.driver.machine.next_round, facts)

    def _count_claim(self) -> None:
        """Count what a node says of its work: no more samples than it leased, no longer than this process has run."""
        node, name, hall, claim = self._member.node_id, self._member.name, self._intake.hall, self._claim
        leased = hall.leases.reported_samples(node, claim.trained_through)
        skipped = max(0, min(claim.skipped, leased - claim.samples))
        compute_s = hall.counts.believed_s(node, claim.compute_ms, hall.now() - hall.began)
        hall.events.tell(ContributionOffered(node, min(claim.dropped, leased), compute_s, skipped))
        if skipped:
            text = f"{name}: cannot read the data of {skipped} samples, and has passed over them"
            tell(log, logging.INFO, "coordinator.samples_skipped", text, node_id=node, name=name, samples=skipped)

    def _begin(self, current: OpenRound) -> Contribution:
        intake, claim, member = self._intake, self._claim, self._member
        spec, trust = intake.hall.contract.round, intake.observer.trust_in(member.node_id)
        weight = admission.weight(claim.samples, spec.samples, spec.weight_max, trust)
        began, signed = intake.hall.now(), NodeSignature(member.public_key, claim.signature)
        contribution = Contribution(member.node_id, claim.session, weight, claim.samples, claim.loss, began, signed)
        current.round.begin(contribution)
        return contribution

    # the payload

    async def _take_in(
        self, current: OpenRound, contribution: Contribution, memory: Reservation, parts: AsyncIterator[bytes]
    ) -> Receipt | asyncio.Future[Receipt]:
        """Read a contribution and start its check. Return its future receipt, or the refusing one if it is known.

        No variable holds the payload once this has returned: the receipt may take until the end of the round.
        """
        found = await self._read_whole(current, contribution, memory, parts)
        if isinstance(found, Receipt):
            return found
        hall, node = self._intake.hall, self._member.node_id
        name = contribution_hash(hall.contract.hash, hall.term.number, current.round.number, node, found)
        # before anything is known under this name: whoever lacks the key must not decide what its receipt is
        if (forged := admission.check_signature(self._claim, name, self._member.public_key)) is not None:
            current.round.refuse(contribution)
            return self._not_counted(forged, hall.now_us())
        if (receipt := current.receipt(name)) is not None:
            current.round.refuse(contribution)  # the same contribution was refused before
            memory.release()
            return receipt
        return self._check(current, contribution, name, memory, found)

    async def _read_whole(
        self, current: OpenRound, contribution: Contribution, memory: Reservation, parts: AsyncIterator[bytes]
    ) -> bytes | Receipt:
        """Read the payload, once there is memory for it. Return the refusing receipt instead if it did not arrive
        complete and in time."""
        intake, whole = self._intake, False
        limit = Within(current.round.deadline + READ_GRACE_S - intake.hall.now())
        current.readings.add(limit)
        try:
            async with limit:
                payload = await _read(self._claim.payload_bytes, intake.payload_bytes_max, memory, parts)
            whole = self._is_joined
        except PayloadError as error:
            return self._refuse(Refusal(Reason.MALFORMED, str(error)))
        except asyncio.TimeoutError:
            if self._is_joined:  # the samples of an earlier session are the new one's to report
                return self._refuse(Refusal(Reason.LATE, f"round {current.round.number} ended while this was sent"))
        finally:
            current.readings.discard(limit)
            if not whole:
                current.round.refuse(contribution)
        if not whole:
            # in its new session, the node may already have asked for this receipt and learned that there is none
            return self._not_counted(Refusal(Reason.NO_LEASE, "the node joined again while this was being sent"))
        return payload

    # the content

    def _check(
        self, current: OpenRound, contribution: Contribution, name: bytes, memory: Reservation, payload: bytes
    ) -> asyncio.Future[Receipt]:
        """Start the check of a complete contribution, whose signature is right, and return its future receipt.

        Releases the contribution's memory when the check is over. From now on the receipt can be found by the
        contribution's hash, even if this call is cancelled.
        """
        intake, member, claim, arrived = self._intake, self._member, self._claim, self._intake.hall.now()
        current.arrived(contribution, name, round(arrived * 1e6))
        contribution.trained = intake.hall.leases.reported(member.node_id, claim.trained_through)
        # no other node may train on these samples from now on, because they may still be counted
        intake.hall.leases.report(member.node_id, claim.trained_through)

        async def check() -> None:
            try:
                found = await intake.checker.check(member, claim, current, contribution, payload)
            finally:
                memory.release()
            if isinstance(found, Refusal):
                current.refuse(contribution, self._refuse(found))
                return
            intake.hall.events.tell(
                ContributionTaken(
                    node_id=member.node_id,
                    round=current.round.number,
                    payload_bytes=len(payload),
                    components=len(found),
                    after_open_s=arrived - current.round.opened,
                    before_deadline_s=current.round.deadline - arrived,
                    receive_s=arrived - contribution.began,
                )
            )

        intake.hall.tasks.keep(check())
        receipt = current.receipt(name)
        assert receipt is not None
        return receipt

    # refusals

    def _refuse(self, refusal: Refusal) -> Receipt:
        intake, node, current = self._intake, self._member.node_id, self._current
        intake.observer.refused(node, refusal.reason)
        if refusal.reason != Reason.DUPLICATE:  # the earlier contribution may still be counted
            # the node is alive, and its momentum includes these samples
            intake.hall.leases.report(node, self._claim.trained_through)
        if not intake.observer.trust_in(node):
            intake.driver.disregard(node)
        if refusal.reason == Reason.LATE:
            intake.driver.heard(node)  # the node may still contribute to the open round
        elif refusal.reason != Reason.DUPLICATE and current is not None and not current.is_closed:
            intake.driver.excuse(node, has_nothing=refusal.reason == Reason.NOTHING_TRAINED)
        return self._not_counted(refusal, intake.hall.now_us())

    def _not_counted(self, refusal: Refusal, arrived_us: int = 0) -> Receipt:
        node, name, reason = self._member.node_id, self._member.name, refusal.text
        self._intake.hall.events.tell(ContributionRefused(node, refusal.reason))
        text = f"{name}: not counted: {reason}"
        tell(log, logging.INFO, "coordinator.not_counted", text, node_id=node, name=name, reason=reason)
        return Receipt(refusal.reason, refusal.text, arrived_us=arrived_us)


async def _read(size: int, size_max: int, memory: Reservation, parts: AsyncIterator[bytes]) -> bytes:
    """Read a payload of `size` bytes part by part. Raises PayloadError."""
    assembly = Assembly(size, size_max, "contribution")
    await memory.take()
    async for part in parts:
        assembly.add(part)
    return assembly.whole()
