"""Checks complete contributions: compares their base's fingerprint, decodes their votes, and queues the merge."""

from __future__ import annotations

import asyncio
import logging

from thinwire_common.logs import tell
from thinwire_coordinator.hall.events import FingerprintCompared
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.star.open_round import KnownFingerprint, KnownFingerprints, OpenRound
from thinwire_coordinator.star.round.admission import ContributionClaim, Refusal
from thinwire_coordinator.star.round.contributions import Contribution
from thinwire_coordinator.star.round.driver import RoundDriver
from thinwire_coordinator.star.trust.ballots import Ballot
from thinwire_coordinator.star.trust.observer import Observer
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.amendments import contract_at
from thinwire_proto.exact.votes import Votes
from thinwire_proto.wire.codec import decode_votes
from thinwire_proto.wire.reasons import Reason

log = logging.getLogger("thinwire.coordinator")

UNMERGED_MAX = 2
"""Contributions that may be decoded and not yet merged.

Two keep the merge thread busy. More would only take memory: a decoded contribution is several times the size of its
payload.
"""


class Checker:
    """Checks contributions, with at most UNMERGED_MAX of them decoded at a time."""

    def __init__(self, hall: Hall, driver: RoundDriver, fingerprints: KnownFingerprints, observer: Observer) -> None:
        self._observer = observer
        self._hall = hall
        self._driver = driver
        self._fingerprints = fingerprints
        self._room = asyncio.Semaphore(UNMERGED_MAX)

    async def check(
        self,
        member: Member,
        claim: ContributionClaim,
        current: OpenRound,
        contribution: Contribution,
        payload: bytes,
    ) -> Refusal | Votes:
        """Accept a valid contribution into its round, if it is still open, and return its votes or the refusal."""
        over = Refusal(Reason.LATE, f"round {current.round.number} ended before this was checked")
        base = self._fingerprints.at(claim.step)
        if base is None or current.round is not self._driver.machine.round:
            return over  # a later round is open: at a later step or, after a void round, at this step with a new nonce
        if not await self._replica_is_equal(member, claim, base):
            text = f"{member.name}: its replica differs at step {claim.step}; its votes are not merged"
            node, name = member.node_id, member.name
            tell(log, logging.WARNING, "coordinator.replica_differs", text, node_id=node, name=name, step=claim.step)
            text = f"the node's parameters differ from those of step {claim.step}; fetch a new snapshot"
            return Refusal(Reason.REPLICA_DIFFERS, text)
        await self._room.acquire()
        merging: asyncio.Future[None] | None = None
        try:
            decode = self._decode, current.round.step, member.node_id, payload, contribution.weight > 0
            votes, ballot = await self._hall.workers.submit(Job.DECODE_VOTES, *decode)
            if current.round is not self._driver.machine.round:
                return over
            if not contribution.weight:
                self._observer.voted(contribution, ballot)
                return Refusal(Reason.SUSPECTED, self._observer.why_not_merged(member.node_id))

            def accepted() -> None:
                nonlocal merging
                # not before: a node puts votes back that are late, and may send them again
                self._observer.voted(contribution, ballot)
                # the merge thread adds votes in the order of this queue; the seal comes after all of them
                merging = self._hall.workers.submit(Job.ADD_VOTES, current.merger.add, votes, contribution.weight)
                merging.add_done_callback(lambda _: self._room.release())
                self._hall.tasks.must_succeed(merging)

            return votes if self._driver.deliver(contribution, current.round, accepted) else over
        except PayloadError as error:
            return Refusal(Reason.MALFORMED, str(error))
        finally:
            if merging is None:
                self._room.release()

    def _decode(self, step: int, node: str, payload: bytes, merged: bool) -> tuple[Votes, Ballot]:
        demo = contract_at(self._hall.contract, step).demo
        votes = decode_votes(
            payload,
            self._hall.layout,
            demo.k,
            demo.magnitude,
            whole=demo.sends_whole_tiles,
            levels=demo.vote_levels,
        )
        return votes, self._observer.ballot(node, votes, merged)

    async def _replica_is_equal(self, member: Member, claim: ContributionClaim, base: KnownFingerprint) -> bool:
        equal = claim.fingerprint == await asyncio.shield(base.fingerprint)
        self._hall.events.tell(FingerprintCompared(member.node_id, equal))
        return equal
