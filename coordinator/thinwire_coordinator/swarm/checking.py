"""A contribution that has arrived whole is checked here: its base is compared, and its votes are decoded and merged."""

from __future__ import annotations

import asyncio
import logging

from thinwire_common.logs import tell
from thinwire_coordinator.round.admission import Refusal
from thinwire_coordinator.round.contributions import Contribution
from thinwire_coordinator.swarm.events import FingerprintCompared
from thinwire_coordinator.swarm.fingerprints import KnownFingerprint
from thinwire_coordinator.swarm.members import Member
from thinwire_coordinator.swarm.open_round import OpenRound
from thinwire_coordinator.swarm.shared import Shared
from thinwire_coordinator.swarm.workers import Job
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.votes import Votes
from thinwire_proto.wire.codec import decode_votes
from thinwire_proto.wire.service_pb2 import ContributionHeader, Receipt

log = logging.getLogger("thinwire.coordinator")

UNMERGED_MAX = 2
"""Contributions that are decoded and not merged yet. Two keep the merge thread busy; more would only take memory, each
several times what it has as a payload."""


class Checker:
    def __init__(self, shared: Shared) -> None:
        self._magnitude = shared.contract.demo.magnitude
        self._layout = shared.layout
        self._registry = shared.registry
        self._driver = shared.driver
        self._workers = shared.workers
        self._tasks = shared.tasks
        self._room = asyncio.Semaphore(UNMERGED_MAX)

    async def check(
        self,
        member: Member,
        header: ContributionHeader,
        current: OpenRound,
        contribution: Contribution,
        payload: bytes,
    ) -> Refusal | Votes:
        """Accept a contribution into its round if that is still open, and return its votes; or say why not."""
        over = Refusal(Receipt.REASON_LATE, f"round {current.round.number} ended before this was checked")
        base = self._registry.fingerprints.at(header.step)
        if base is None or current.round is not self._driver.round:
            return over  # rounds stand on later steps by now, or, after a void one, on this step under another nonce
        if not await self._replica_is_equal(member, header, base):
            text = f"{member.name}: its replica differs at step {header.step}; its votes are not merged"
            node, who = member.node_id, member.name
            tell(log, logging.WARNING, "coordinator.replica_differs", text, node_id=node, name=who, step=header.step)
            text = f"the parameters that this was computed on are not those of step {header.step}: fetch them anew"
            return Refusal(Receipt.REASON_REPLICA_DIFFERS, text)
        await self._room.acquire()
        merging: asyncio.Future[None] | None = None
        try:
            votes = await self._workers.submit(
                Job.DECODE_VOTES, decode_votes, payload, self._layout, current.k, self._magnitude
            )

            def accepted() -> None:
                nonlocal merging
                # merged as they come, in the order in which the merge thread gets them; the seal is behind all of them
                merging = self._workers.submit(Job.ADD_VOTES, current.merger.add, votes, contribution.weight)
                merging.add_done_callback(lambda _: self._room.release())
                self._tasks.must_succeed(merging)

            return votes if self._driver.deliver(contribution, current.round, accepted) else over
        except PayloadError as error:
            return Refusal(Receipt.REASON_MALFORMED, str(error))
        finally:
            if merging is None:
                self._room.release()

    async def _replica_is_equal(self, member: Member, header: ContributionHeader, base: KnownFingerprint) -> bool:
        equal = header.fingerprint == await asyncio.shield(base.fingerprint)
        self._registry.events.tell(FingerprintCompared(member.node_id, equal))
        return equal
