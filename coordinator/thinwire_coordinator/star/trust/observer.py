"""Observes the contributions of each round, and keeps the trust in each node.

A round is never delayed: votes are noted as they are decoded, and compared on a worker after the round is over. If that
worker is busy with earlier rounds, a round passes unobserved.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from thinwire_common.logs import tell
from thinwire_coordinator.hall.access.store import COORDINATOR, AccessStore
from thinwire_coordinator.hall.access.store import Decision as Recorded
from thinwire_coordinator.hall.events import NodeJudged, Verdict
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.ledger.kept_replica import KeptReplica
from thinwire_coordinator.hall.workers import Job, Workers
from thinwire_coordinator.star.round.contributions import Contribution
from thinwire_coordinator.star.trust.audit import REFERENCES_MAX, VOTES_MIN, Subject
from thinwire_coordinator.star.trust.auditing import Auditor
from thinwire_coordinator.star.trust.ballots import Ballot, Secret, digest_of
from thinwire_coordinator.star.trust.comparison import Comparer
from thinwire_coordinator.star.trust.evidence import Audited, Decision, RoundEvidence
from thinwire_coordinator.star.trust.standing import Standing
from thinwire_coordinator.star.trust.trust import Trust
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.votes import Votes
from thinwire_proto.wire.reasons import Reason

log = logging.getLogger("thinwire.coordinator")

VOTES_MAX = 1 << 20
"""Votes of a round that are compared: about 9 MiB. Of larger rounds, a secret sample of the components is."""
NOTED_VOTES_MAX = 2 * VOTES_MAX
"""Votes of a round that are noted. If nodes that came after the round had opened send more, the sample of the
components becomes smaller, for all contributions of the round: so the last to arrive are compared like the first."""
ROUNDS_WAITING_MAX = 2
"""Rounds whose votes may wait for the worker. Each keeps its votes in memory."""
SILENT_AFTER = 16
"""Rounds in a row without a contribution from which on a node that takes part is silent. A slow node contributes more
often than that."""
AUDIT_POSITIONS_MAX = 64
"""Positions of a contribution that are noted for an audit."""


@dataclass
class _Notes:
    round: int
    nodes: tuple[str, ...]
    share: float  # of the components that are compared
    subjects: dict[str, Subject] = field(default_factory=dict)  # by node, in the order of arrival
    mismatched: list[str] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)
    came: set[str] = field(default_factory=set)
    copy: asyncio.Future[KeptReplica] | None = None  # the replica at the round's step, if the round will be audited
    votes: int = 0  # of all subjects; kept here, because adding them up at each contribution is quadratic

    def note(self, node: str, subject: Subject) -> None:
        before = self.subjects.get(node)
        self.votes += len(subject.ballot) - (len(before.ballot) if before is not None else 0)
        self.subjects[node] = subject


@dataclass(frozen=True)
class TrustSettings:
    """store: keeps standings over restarts; None in simulations. audits: None for no audits. audit_every: rounds from
    one audit to the next. randomness: source of the secret that chooses votes, and of who is audited."""

    store: AccessTrustStore | None = None
    audits: Auditor | None = None
    audit_every: int = 1
    randomness: random.Random = field(default_factory=random.SystemRandom)


NO_AUDITS = TrustSettings()


class Observer:
    def __init__(self, hall: Hall, settings: TrustSettings) -> None:
        self._hall = hall
        self._store, self._audits, self._audit_every = settings.store, settings.audits, settings.audit_every
        self._random, self._wall = settings.randomness, hall.surroundings.wall
        self._secret = Secret(settings.randomness.getrandbits(64))
        demo = hall.contract.demo
        self._comparer = Comparer(self._secret, may_repeat=demo.update_topk > 0)
        self.trust = Trust(hall.contract.round.weight_max, settings.store.load() if settings.store else ())
        self._notes: _Notes | None = None
        self._waiting = 0
        self._auditing = False  # whether a copy of the replica is kept for an audit
        self._silent: dict[str, int] = {}  # rounds in a row without a contribution, of nodes that take part
        self._earlier: deque[Ballot] = deque(maxlen=REFERENCES_MAX)

    # a node

    def joined(self, node: str, group: str) -> None:
        """A node joins. group: of its address; see `hall.access.addresses.group_of`."""
        self.trust.arrived(node, group, self._wall())

    def pardon(self, node: str) -> None:
        """The organizer overrules: everything against a node is forgotten."""
        self.trust.pardon(node, self._wall())

    def trust_in(self, node: str) -> float:
        """The trust in a node, 0 to 1."""
        return self.trust.weight(node)

    def why_not_merged(self, node: str) -> str:
        """Return the reason for which the votes of a node are not merged, in words."""
        why = self.trust.of(node).why
        if why:
            return f"your votes are not merged at present: {why}; they are still observed, so that this can end"
        if node not in self.trust.weights:
            return "this node has been away for many rounds; its contributions count from the next round on"
        return "many newcomers share your network's address, so each counts in some rounds only"

    # held-out losses

    def may_measure(self, node: str) -> bool:
        """Whether a node is trusted enough to be asked for held-out losses."""
        return self.trust.is_established(node, self._wall())

    def measured(self, answers: Sequence[tuple[str, bool]]) -> None:
        """Learn from answers about held-out losses: of each its node, and whether it was wrong."""
        self._learn(RoundEvidence(0, held_out=tuple(answers)))

    # a round

    def opened(self, number: int, nodes: tuple[str, ...]) -> None:
        self.trust.opened(number, nodes, self._wall())
        # nodes go on sending what an update has left out after an amendment lets updates have all
        self._comparer.may_repeat |= self._hall.contract.demo.update_topk > 0
        votes_max = max(1, len(nodes) * self._hall.layout.selected_max(self._hall.contract.demo.k))
        share = 1.0
        while share * votes_max > VOTES_MAX:
            share /= 2  # in powers of two, so that it seldom changes
        self._notes = _Notes(number, nodes, share)
        if self._audits is not None and self._audit_is_due(number, nodes, self._audits):
            self._auditing = True
            self._notes.copy = self._hall.copies.take()

    def _audit_is_due(self, number: int, nodes: tuple[str, ...], audits: Auditor) -> bool:
        return (
            number % self._audit_every == 0 and len(nodes) > 1 and not self._auditing and audits.due(self._hall.now())
        )

    def ballot(self, node: str, votes: Votes, merged: bool) -> Ballot:
        """Take the votes of a contribution that will be compared, none if its round is not noted. Any thread may call
        this."""
        notes = self._notes
        if notes is None:
            return Ballot(node, np.zeros(0, np.int64), np.zeros(0, np.bool_), merged)
        found = self._secret.sampled(votes, notes.share)
        return Ballot(node, *found, merged, digest_of(*found))

    def came(self, node: str) -> None:
        """A node has sent something in this round, in time or not."""
        self._silent.pop(node, None)
        if self._notes is not None:
            self._notes.came.add(node)

    def voted(self, contribution: Contribution, ballot: Ballot) -> None:
        """A contribution to the open round was decoded."""
        notes = self._notes
        if notes is None:
            return
        some = chain.from_iterable(range(run.start, run.start + run.count) for run in contribution.trained)
        positions = tuple(position for _, position in zip(range(AUDIT_POSITIONS_MAX), some, strict=False))
        # the share may have become smaller since the votes were sampled
        notes.note(contribution.node, Subject(self._secret.thinned(ballot, notes.share), positions))
        while notes.votes > NOTED_VOTES_MAX:
            notes.share /= 2
            for node, subject in list(notes.subjects.items()):
                notes.note(node, replace(subject, ballot=self._secret.thinned(subject.ballot, notes.share)))

    def refused(self, node: str, reason: Reason) -> None:
        """A contribution was not accepted."""
        if self._notes is not None and reason is Reason.REPLICA_DIFFERS:
            self._notes.mismatched.append(node)
        elif self._notes is not None and reason is Reason.MALFORMED:
            self._notes.malformed.append(node)

    def voided(self) -> None:
        """The round is void, so nothing is learned from it: whatever was the matter, it hit many."""
        self._drop(self._notes)
        self._notes = None

    def _drop(self, notes: _Notes | None) -> None:
        """Pass over a round."""
        if notes is not None and notes.copy is not None:
            self._auditing = False

    def sealed(self) -> None:
        """The round is sealed. Compares its votes on a worker."""
        notes, self._notes = self._notes, None
        if notes is None or self._waiting >= ROUNDS_WAITING_MAX:
            self._drop(notes)
            return
        self._waiting += 1
        self._hall.events.keep("trust", self._observe(notes))

    async def _observe(self, notes: _Notes) -> None:
        audited = notes.copy is not None
        try:
            ballots = [subject.ballot for subject in notes.subjects.values()]
            weights = {ballot.node: self.trust.weight(ballot.node) for ballot in ballots}
            shown = await self._hall.workers.submit(
                Job.COMPARE_VOTES, self._comparer.compare, ballots, weights.__getitem__
            )
            silent, mismatched = tuple(self._silent_of(notes)), tuple(notes.mismatched)
            self._learn(RoundEvidence(notes.round, shown, silent, mismatched, tuple(notes.malformed)))
            if notes.copy is not None:
                copy, notes.copy = notes.copy, None
                audits = await self._audit(await copy, notes)
                self._learn(RoundEvidence(notes.round, audits=audits))
            self._earlier.extend(ballots)
        finally:
            self._waiting -= 1
            self._auditing = self._auditing and not audited

    def _silent_of(self, notes: _Notes) -> Iterable[str]:
        members = self._hall.members.by_id
        for node in list(self._silent):
            if node not in members or not members[node].active:
                del self._silent[node]
        for node in notes.nodes:
            if node not in notes.came and node in members and members[node].active:
                self._silent[node] = self._silent.get(node, 0) + 1
                if self._silent[node] > SILENT_AFTER:
                    yield node

    async def _audit(self, copy: Replica, notes: _Notes) -> tuple[Audited, ...]:
        """Audit two contributions of a round."""
        subjects = {
            node: subject
            for node, subject in notes.subjects.items()
            if subject.positions and len(subject.ballot) >= VOTES_MIN
        }
        if len(subjects) < 2:
            return ()
        own = subjects.pop(self.trust.whom_to_audit(list(subjects), self._random.random()))
        other = subjects.pop(self._random.choice(sorted(subjects)))
        references = [subject.ballot for subject in subjects.values() if self.trust.weight(subject.ballot.node) > 0]
        references = [*references, *reversed(self._earlier)][:REFERENCES_MAX]
        assert self._audits is not None
        return await self._hall.workers.submit(Job.AUDIT, self._audits.audit, copy, own, other, references)

    def _learn(self, evidence: RoundEvidence) -> None:
        _, decisions = self.trust.observe(evidence, self._wall())
        for decision in decisions:
            self._tell(decision)
        if self._store is not None:
            nodes = {one.node for one in evidence.shown} | {decision.node for decision in decisions}
            nodes.update(node for node, _ in evidence.held_out)
            self._store.save([self.trust.of(node) for node in sorted(nodes)], decisions)

    def _tell(self, decision: Decision) -> None:
        node = decision.node
        name = self._hall.members.by_id[node].name if node in self._hall.members.by_id else node[:8]
        verdict, cause, reason = decision.verdict, decision.cause, decision.reason
        until = decision.until if verdict is Verdict.BANNED else 0.0
        tell(
            log,
            logging.INFO if verdict is Verdict.CLEARED else logging.WARNING,
            "coordinator.trust_changed",
            f"{name}: {verdict.value}: {reason}",
            node_id=node,
            name=name,
            verdict=verdict.value,
            cause=cause.value,
            reason=reason,
        )
        self._hall.events.tell(NodeJudged(node, verdict, cause, reason, until))

    @property
    def noted_votes(self) -> int:
        return self._notes.votes if self._notes is not None else 0

    @property
    def busy(self) -> bool:
        """Whether the votes of a round are still being compared or audited."""
        return self._waiting > 0

    def stop(self) -> None:
        if self._audits is not None:
            self._audits.stop()


@dataclass(frozen=True)
class AccessTrustStore:
    """Keeps standings and decisions on access.sqlite, where the door enforces bans. `save` returns at once; a worker
    writes."""

    access: AccessStore
    workers: Workers
    wall: Callable[[], float] = time.time
    unwritten: list[Decision] = field(default_factory=list)
    """Decisions that could not be written when they were taken."""

    def load(self) -> Iterable[Standing]:
        """All standings; one that cannot be read is left out."""
        for node, plain in self.access.standings.all().items():
            with suppress(TypeError, ValueError):
                yield Standing.from_plain(node, plain)

    def save(self, standings: Iterable[Standing], decisions: Iterable[Decision]) -> None:
        plain = {standing.node: standing.plain() for standing in standings}
        taken = (*self.unwritten, *decisions)
        self.unwritten.clear()

        def look(writing: asyncio.Future[None]) -> None:
            """Log a failure: the run goes on without it, and the next round writes again."""
            if not writing.cancelled() and (error := writing.exception()) is not None:
                self.unwritten[:0] = taken
                log.warning("cannot keep the trust in nodes: %s", error)

        self.workers.submit(Job.WRITE_TRUST, self._write, plain, taken, self.wall()).add_done_callback(look)

    def _write(self, standings: Mapping[str, Any], decisions: Sequence[Decision], now: float) -> None:
        self.access.standings.put(standings)
        for decision in decisions:
            if decision.verdict is Verdict.BANNED:
                self.access.bans.ban(decision.node, decision.until, decision.reason, COORDINATOR, now)
            else:
                what = decision.verdict.value
                self.access.bans.record(Recorded(now, decision.node, what, decision.reason, COORDINATOR))
