"""Receives contributions: checks the header, reads the payload part by part, and has the content checked.

Every contribution gets a receipt, either at once or when its round is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from thinwire_common.logs import tell
from thinwire_common.within import Within
from thinwire_coordinator.hall.byte_budget import ByteBudget, Reservation
from thinwire_coordinator.hall.events import ContributionOffered, ContributionRefused, ContributionTaken
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.hall.shared import Shared
from thinwire_coordinator.round import admission
from thinwire_coordinator.star.checking import Checker
from thinwire_coordinator.star.open_round import OpenRound
from thinwire_coordinator.star.round.admission import ContributionClaim, Refusal
from thinwire_coordinator.star.round.contributions import Contribution, NodeSignature, Round
from thinwire_coordinator.star.round.receipts import Receipt
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
    """Receives the contributions to one round at a time. `current` is the round that is open or being sealed."""

    def __init__(self, shared: Shared, observer: Observer) -> None:
        self._observer = observer
        contract = shared.contract
        self._contract = contract
        self._term = shared.term
        self._registry = shared.registry
        self._driver = shared.driver
        self._tasks = shared.tasks
        self._checker = Checker(shared, observer)
        demo, layout = contract.demo, shared.layout
        self._payload_bytes_max = contribution_bytes_max(layout, demo.k, demo.magnitude, whole=demo.sends_whole_tiles)
        self._room = ByteBudget(arriving_bytes_max(contract.round.nodes_max, self._payload_bytes_max))
        self._current: OpenRound | None = None

    @property
    def current(self) -> OpenRound | None:
        return self._current

    def open(self, opened: Round, k: int, merger: Merges) -> None:
        """Accept contributions to this round from now on."""
        self._current = OpenRound(opened, k, merger)

    def close(self, receipt: Receipt) -> None:
        """End the round: give this receipt to every accepted contribution."""
        current, self._current = self._current, None
        assert current is not None
        current.close(receipt)

    async def contribute(self, member: Member, claim: ContributionClaim, parts: AsyncIterator[bytes]) -> Receipt:
        """Receive a contribution and return its receipt, which may take until its round is over."""
        self._observer.came(member.node_id)
        current = self._current
        refusal = self._check_header(member, claim, current)
        if refusal is None or refusal.reason is not Reason.DUPLICATE:
            self._count_claim(member, claim)
        if refusal is not None or current is None:
            assert refusal is not None
            return self._refuse(member, claim, current, refusal)
        contribution = self._begin(member, claim, current.round)
        memory = self._room.reservation(claim.payload_bytes)
        receipt: Receipt | asyncio.Future[Receipt] | None = None
        try:
            receipt = await self._take_in(member, claim, current, contribution, memory, parts)
        finally:
            if not isinstance(receipt, asyncio.Future):  # otherwise the check needs the payload, and then releases it
                memory.release()
        return await asyncio.shield(receipt) if isinstance(receipt, asyncio.Future) else receipt

    def _count_claim(self, member: Member, claim: ContributionClaim) -> None:
        """Count what a node says of its work: no more samples than it leased, no longer than this process has run."""
        node, name, registry = member.node_id, member.name, self._registry
        leased = registry.leases.reported_samples(node, claim.trained_through)
        skipped = max(0, min(claim.skipped, leased - claim.samples))
        compute_s = registry.counts.believed_s(node, claim.compute_ms, self._driver.now() - registry.began)
        registry.events.tell(ContributionOffered(node, min(claim.dropped, leased), compute_s, skipped))
        if skipped:
            text = f"{name}: cannot read the data of {skipped} samples, and has passed over them"
            tell(log, logging.INFO, "coordinator.samples_skipped", text, node_id=node, name=name, samples=skipped)

    async def _take_in(
        self,
        member: Member,
        claim: ContributionClaim,
        current: OpenRound,
        contribution: Contribution,
        memory: Reservation,
        parts: AsyncIterator[bytes],
    ) -> Receipt | asyncio.Future[Receipt]:
        """Read a contribution and start its check. Return its future receipt, or the refusing one if it is known.

        No variable holds the payload once this has returned: the receipt may take until the end of the round.
        """
        found = await self._read_whole(member, claim, current, contribution, memory, parts)
        if isinstance(found, Receipt):
            return found
        contract, term, number = self._contract.hash, self._term.number, current.round.number
        contribution_name = contribution_hash(contract, term, number, member.node_id, found)
        # before anything is known under this name: whoever lacks the key must not decide what its receipt is
        if (forged := admission.check_signature(claim, contribution_name, member.public_key)) is not None:
            current.round.refuse(contribution)
            return self._not_counted(member, forged, self._driver.now_us())
        return self._judge(member, claim, current, contribution, contribution_name, memory, found)

    async def ask_receipt(self, name: bytes) -> Receipt | None:
        """Wait for the receipt of a contribution to the current round; None if the round has no such contribution."""
        receipt = self._current.receipt(name) if self._current else None
        return None if receipt is None else await asyncio.shield(receipt)

    def may_be_counted(self, name: bytes) -> bool:
        """Whether a contribution is in the current round, so that its outcome may still be open."""
        return self._current is not None and self._current.receipt(name) is not None

    def may_count_from(self, node: str) -> bool:
        """Whether the current round has a complete contribution of a node that may still be counted."""
        return self._current is not None and self._current.round.has_whole_from(node)

    def _check_header(self, member: Member, claim: ContributionClaim, current: OpenRound | None) -> Refusal | None:
        facts = self._facts(current.round, member, claim.trained_through) if current else None
        return admission.check_header(claim, self._term.number, self._driver.next_round, facts)

    def _facts(self, current: Round, member: Member, trained_through: int | None) -> admission.RoundFacts:
        leases = self._registry.leases
        contributed = current.has_from(member.node_id, member.session)
        full = current.full and not contributed  # full of contributions from nodes that were forgotten since
        holds = leases.holds(member.node_id) and not full
        return admission.RoundFacts(
            round=current.number,
            step=current.step,
            base_age_max=self._contract.round.base_age_max,
            leased_samples=leases.reported_samples(member.node_id, trained_through) if holds else None,
            contributed=contributed,
            payload_bytes_max=self._payload_bytes_max,
        )

    def _begin(self, member: Member, claim: ContributionClaim, current: Round) -> Contribution:
        spec = self._contract.round
        trust = self._observer.trust_in(member.node_id)
        weight = admission.weight(claim.samples, spec.samples, spec.weight_max, trust)
        began, signed = self._driver.now(), NodeSignature(member.public_key, claim.signature)
        contribution = Contribution(member.node_id, claim.session, weight, claim.samples, claim.loss, began, signed)
        current.begin(contribution)
        return contribution

    async def _read_whole(
        self,
        member: Member,
        claim: ContributionClaim,
        current: OpenRound,
        contribution: Contribution,
        memory: Reservation,
        parts: AsyncIterator[bytes],
    ) -> bytes | Receipt:
        """Read the payload, once there is memory for it. Return the refusing receipt instead if it did not arrive
        complete and in time."""
        whole = False
        try:
            patience_s = current.round.deadline + READ_GRACE_S - self._driver.now()
            async with Within(patience_s):
                payload = await _read(claim.payload_bytes, self._payload_bytes_max, memory, parts)
            whole = self._registry.members.by_session.get(claim.session) is member
        except PayloadError as error:
            return self._refuse(member, claim, current, Refusal(Reason.MALFORMED, str(error)))
        except asyncio.TimeoutError:
            late = Refusal(Reason.LATE, f"round {current.round.number} ended while this was sent")
            return self._refuse(member, claim, current, late)
        finally:
            if not whole:
                current.round.refuse(contribution)
        if not whole:
            # in its new session, the node may already have asked for this receipt and learned that there is none
            left = Refusal(Reason.NO_LEASE, "the node joined again while this was being sent")
            return self._not_counted(member, left)
        return payload

    def _judge(
        self,
        member: Member,
        claim: ContributionClaim,
        current: OpenRound,
        contribution: Contribution,
        name: bytes,
        memory: Reservation,
        payload: bytes,
    ) -> asyncio.Future[Receipt]:
        """Start the check of a complete contribution, whose signature is right, and return its future receipt.

        Releases the contribution's memory when the check is over.

        From now on the receipt can be found by the contribution's hash, even if this call is cancelled.
        """
        number = current.round.number
        if (receipt := current.receipt(name)) is not None:
            current.round.refuse(contribution)  # the same contribution was refused before
            memory.release()
            return receipt
        arrived = self._driver.now()
        current.arrived(contribution, name, round(arrived * 1e6))
        contribution.trained = self._registry.leases.reported(member.node_id, claim.trained_through)
        # no other node may train on these samples from now on, because they may still be counted
        self._registry.leases.report(member.node_id, claim.trained_through)

        async def judge() -> None:
            try:
                found = await self._checker.check(member, claim, current, contribution, payload)
            finally:
                memory.release()
            if isinstance(found, Refusal):
                current.refuse(contribution, self._refuse(member, claim, current, found))
                return
            self._registry.events.tell(
                ContributionTaken(
                    node_id=member.node_id,
                    round=number,
                    payload_bytes=len(payload),
                    components=len(found),
                    after_open_s=arrived - current.round.opened,
                    before_deadline_s=current.round.deadline - arrived,
                    receive_s=arrived - contribution.began,
                )
            )

        self._tasks.keep(judge())
        receipt = current.receipt(name)
        assert receipt is not None
        return receipt

    def _refuse(self, member: Member, claim: ContributionClaim, current: OpenRound | None, refusal: Refusal) -> Receipt:
        driver = self._driver
        self._observer.refused(member.node_id, refusal.reason)
        if refusal.reason != Reason.DUPLICATE:  # the earlier contribution may still be counted
            # the node is alive, and its momentum includes these samples
            self._registry.leases.report(member.node_id, claim.trained_through)
        if not self._observer.trust_in(member.node_id):
            driver.disregard(member.node_id)
        if refusal.reason == Reason.LATE:
            driver.heard(member.node_id)  # the node may still contribute to the open round
        elif refusal.reason != Reason.DUPLICATE and current is not None and current is self._current:
            driver.excuse(member.node_id, has_nothing=refusal.reason == Reason.NOTHING_TRAINED)
        return self._not_counted(member, refusal, driver.now_us())

    def _not_counted(self, member: Member, refusal: Refusal, arrived_us: int = 0) -> Receipt:
        self._registry.events.tell(ContributionRefused(member.node_id, refusal.reason))
        node, name, reason = member.node_id, member.name, refusal.text
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
