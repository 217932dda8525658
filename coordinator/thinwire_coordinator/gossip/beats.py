"""Takes the reports of nodes, answers with leases and topologies, and seals a row of the ledger in each beat.

Everything here runs on the event loop and returns at once; workers do the slow jobs.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from thinwire_common.logs import tell
from thinwire_coordinator.gossip.directory import Collect, Phase
from thinwire_coordinator.gossip.figures import GossipFigures, SeenPeer
from thinwire_coordinator.gossip.formation import Plan, form
from thinwire_coordinator.gossip.held_out import HeldOutLosses
from thinwire_coordinator.gossip.judging import heard_of, is_repeated, why_refuse
from thinwire_coordinator.gossip.ledger_rows import RowSealer
from thinwire_coordinator.gossip.measurements import Measurement, Sketches
from thinwire_coordinator.gossip.participants import Participant
from thinwire_coordinator.gossip.sealed_beats import sealed_beat
from thinwire_coordinator.gossip.settings import LEASE_FIRST, LEASE_RUNS_MAX, GossipSettings
from thinwire_coordinator.gossip.store import SealedReport, Store
from thinwire_coordinator.hall.access.door import Denied, DoorReason
from thinwire_coordinator.hall.events import ContributionOffered, DisagreementMeasured, NodeCame, NodeWent
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.leases import SampleRange, count
from thinwire_coordinator.hall.ledger.state_directory import begun
from thinwire_coordinator.hall.measurement import Part
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.hall.workers import Job
from thinwire_proto import limits
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.errors import Locked
from thinwire_proto.gossip.assignment import Assignment
from thinwire_proto.gossip.reports import SeenLines, SignedReport

log = logging.getLogger("thinwire.coordinator")

MEASURES_AFTER = 16
"""Iterations whose samples a node must have reported before it is asked for held-out losses."""


class ReportRefused(Exception):
    """A report or a deposit changes nothing, for this reason."""

    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.text)
        self.denied = denied


@dataclass(frozen=True)
class BeatAnswer:
    """stage: waiting, paused, training, deposit or complete. text: in words. peers: those of the assignment whose
    places are new to the node. measure_at: the iteration whose sketch is asked for; 0: none. evaluate: parts of
    held-out sets to measure, on the parameters with which the part's iteration begins. resumes_in_s: of a pause; None:
    nobody has said when it ends. amendments: those that the node does not have, oldest first."""

    stage: str
    text: str
    next_s: float
    lease: tuple[SampleRange, ...] = ()
    assignment: Assignment | None = None
    peers: Sequence[Participant] = ()
    measure_at: int = 0
    evaluate: Sequence[Part] = ()
    resumes_in_s: float | None = None
    amendments: Sequence[Amendment] = ()


class Beats:
    """sketches: those that nodes have sent."""

    def __init__(
        self, hall: Hall, settings: GossipSettings, sealer: RowSealer, sketches: Sketches, held_out: HeldOutLosses
    ) -> None:
        self._hall = hall
        self._settings = settings
        self._sealer = sealer
        self.sketches = sketches
        self._held_out = held_out
        self._store = Store(hall, settings, lambda: begun(sealer.begun))
        self.directory = self._store.directory
        if sealer.is_complete:
            self.directory.phase = Phase.COMPLETE
        self.is_closed = self._sealer.is_complete
        """Whether rows of beats are over: the next row is that of the mean."""
        self._answered: dict[str, SignedReport] = {}  # by node, the newest of its session
        self._told: dict[str, int] = {}  # by node, the amendments that it had after the answer to that
        self._forming = asyncio.Lock()
        self.figures = GossipFigures(self.directory, settings.codec, sealer.step)

    def leave(self, member: Member, trained_through: int | None) -> None:
        """Handle an orderly departure: what is left of the node's lease becomes free."""
        node, leases = member.node_id, self._hall.leases
        leases.report(node, trained_through)
        leases.settle(node)
        leases.give_back(node)
        self.directory.leave(node)
        if (known := self.directory.by_node.get(node)) is not None and trained_through is not None:
            known.trained_through = trained_through
        self._went(node, lost=False)
        self._hall.tasks.keep(self._kept())

    async def _kept(self) -> None:
        await self.decide()
        await self.keep()

    async def keep(self) -> None:
        """Return when all that has been decided up to now is on disk."""
        await self._store.keep()

    def amend(self) -> None:
        self.sketches.amend()
        iteration = self._held_out.iteration
        if self._held_out.amend(self._hall.state.held_out_sets):
            self._given_up(iteration, "before the run was made shorter")

    async def beat(
        self,
        member: Member,
        signed: SignedReport,
        sketch: bytes,
        address: str = "",
        lines: SeenLines | None = None,
        amendments: int = 0,
    ) -> BeatAnswer:
        """Take a report, and return its answer once all that it promises is on disk. Raises ReportRefused.

        address: HOST:PORT at which its peers reach the node; empty if it does not listen. lines: for those who watch.
        amendments: those that the node has.
        """
        node, before = member.node_id, self._answered.get(member.node_id)
        was_there = (known := self.directory.by_node.get(node)) is not None and known.is_restored
        if before is not None and before.session == signed.session and signed.number <= before.number:
            if signed.hash != before.hash:
                text = f"report {signed.number} of this session came already, with another content"
                raise ReportRefused(Denied(DoorReason.MALFORMED, text))
        else:
            if before is not None and before.session == signed.session and amendments < self._told.get(node, 0):
                raise ReportRefused(self._cannot_follow())
            self._take(member, signed, sketch, address)
            self._answered[node] = signed
        if lines is not None:
            self._see(node, lines, was_there=was_there)
        await self.decide()
        missing = self._hall.contract.amendments[amendments:]
        answer = self._answer(self.directory.by_node[node], signed.report.topology, lacks=bool(missing))
        self._told[node] = len(self._hall.contract.amendments)
        await self.keep()
        return replace(answer, amendments=missing) if missing else answer

    def _cannot_follow(self) -> Denied:
        newest = self._hall.contract.amendments[-1]
        text = (
            "the organizer has amended this run, and the node's version of thinwire cannot follow; it needs thinwire "
            f"{newest.version} or newer"
        )
        return Denied(DoorReason.TOO_OLD, text)

    def _take(self, member: Member, signed: SignedReport, sketch: bytes, address: str) -> None:
        node, report, leases = member.node_id, signed.report, self._hall.leases
        known = self.directory.by_node.get(node)
        says = report.samples > 0 or (known is not None and report.iteration != known.iteration)
        says = says and not self.is_closed
        denied = why_refuse(signed, member.public_key, self.directory)
        if denied is None and says and not self._store.unsealed.has_room(node):
            denied = Denied(DoorReason.RATE, "this report comes too soon: the row of this beat is full; send it later")
        if denied is not None:
            raise ReportRefused(denied)
        new = leases.reported_samples(node, report.trained_through)
        samples = 0 if is_repeated(signed, known) else min(report.samples, new)
        leases.report(node, report.trained_through)
        leases.settle(node)
        known = self.directory.hear(heard_of(signed, member.public_key, address), self._hall.now())
        if report.trained_through is not None:
            known.trained_through = report.trained_through
        if report.samples:
            known.computing_s = report.compute_ms / 1000 / report.samples * self._settings.samples
        if not member.reports:
            member.reports = True
            self._hall.events.tell(NodeCame(node))
        if says:
            self._store.unsealed.add(SealedReport(signed, member.public_key, samples))
            self.sketches.put(node, report.sketch_iteration, sketch, report.step_norm)
            elapsed_s = self._hall.now() - self._hall.began
            compute_s = self._hall.counts.believed_s(node, report.compute_ms, elapsed_s)
            self._hall.events.tell(ContributionOffered(node, 0, compute_s))

    def _see(self, node: str, lines: SeenLines, *, was_there: bool) -> None:
        """Take the lines of a node, and show them with the ids of its peers. was_there: before this coordinator began,
        and it has not reported since."""
        sent, received, elapsed_s = lines.direct_sent, lines.direct_received, self._hall.now() - self._hall.began
        self._hall.counts.direct_is(node, sent, received, elapsed_s, is_older=was_there)
        named = ((self.directory.of_member(edge.member), edge) for edge in lines.edges)
        self.figures.edges[node] = tuple(
            SeenPeer(known.node, edge.line, None if (edge.iteration or 0) > self._settings.steps else edge.iteration)
            for known, edge in named
            if known is not None
        )

    async def decide(self) -> None:
        """Form the topology that is due, or begin to collect parameters."""
        async with self._forming:
            directory, now = self.directory, self._hall.now()
            decision = directory.decide(now)
            if isinstance(decision, Plan):
                formed = await self._hall.workers.submit(
                    Job.FORM_TOPOLOGY, form, directory.settings.topology, decision, directory.topology
                )
                directory.begin(formed, self._hall.now())
                self._ask()
                self._tell(decision)
            elif isinstance(decision, Collect):
                directory.phase = Phase.COLLECTING
                log.info("%s", decision.reason)

    def _tell(self, plan: Plan) -> None:
        text = f"topology {plan.number} from iteration {plan.start}, {len(plan.members)} members: {plan.reason}"
        tell(
            log,
            logging.INFO,
            "coordinator.topology",
            text,
            topology=plan.number,
            start=plan.start,
            members=len(plan.members),
            reason=plan.reason,
        )

    def _answer(self, known: Participant, topology: int, *, lacks: bool) -> BeatAnswer:
        """lacks: whether the node does not have all amendments."""
        directory, beat_s = self.directory, self._settings.beat_s
        soon_s, takes_part = min(beat_s, limits.LOOK_AGAIN_S), directory.runs(known)
        if directory.phase is Phase.COMPLETE:
            return BeatAnswer("complete", "the run is complete", beat_s)
        if directory.phase is Phase.COLLECTING and not (takes_part and known.enters_at is None):
            return BeatAnswer("waiting", "the run is ending, and this node has no part in it", soon_s)
        if not takes_part or directory.topology is None:
            text = directory.why_left_out(known, self._hall.now())
            return BeatAnswer("waiting", f"not a member now: {text}", soon_s)
        if directory.phase is Phase.COLLECTING:
            text = (
                "waiting for the parameters of others"
                if known.node in self.figures.deposited
                else "send the parameters"
            )
            return BeatAnswer("deposit", text, soon_s)
        return self._training(known, topology, soon_s, lacks=lacks)

    def _training(self, known: Participant, topology: int, soon_s: float, *, lacks: bool) -> BeatAnswer:
        """The answer to a member that trains. lacks: as for `_answer`; its lease then stays as it is."""
        directory, beat_s = self.directory, self._settings.beat_s
        if (pause := self._hall.pause) is not None:  # without a lease, a node stops within the iteration
            left_s = pause.left_s(self._hall.surroundings.wall())
            return BeatAnswer("paused", pause.text, soon_s, resumes_in_s=left_s)
        leases, measure_at = self._hall.leases, self.sketches.measure_at
        wanted = self._settings.lease_samples(directory.pace_of(known), known.iteration)
        next_s = soon_s if lacks or self._is_awaited(known, soon_s) else beat_s
        if not lacks:
            leases.grant(known.node, wanted, self._sealer.step)
        lease = leases.granted(known.node)[:LEASE_RUNS_MAX]
        directory.allow(known, count(lease))
        parts = self._held_out.open_to(known.node)
        if topology == directory.number:
            return BeatAnswer("training", "", next_s, lease, measure_at=measure_at, evaluate=parts)
        assert directory.topology is not None  # the member is in it
        assignment = directory.topology.assignment(known.member)
        peers = [self._place(member) for member in directory.unknown_places(assignment, topology)]
        return BeatAnswer("training", "", next_s, lease, assignment, peers, measure_at, parts)

    def _is_awaited(self, known: Participant, soon_s: float) -> bool:
        """Whether a node's next report is wanted soon: its parameters are, once the others are done too; or its first
        lease may last for less than a beat. If its first iteration takes longer than this, it does not."""
        if known.iteration >= self._settings.steps:
            return True
        first_s = max(soon_s, self._settings.beat_s / LEASE_FIRST) + soon_s
        return known.computing_s is None and self._hall.now() - known.since < first_s

    def _place(self, member: int) -> Participant:
        """A peer and its place, which nobody knows of a node that was forgotten."""
        return self.directory.of_member(member) or Participant("", member, public_key=bytes(32))

    async def seal(self) -> None:
        """Seal the reports of a beat, if there are any. Raises OSError or LedgerError."""
        now, leases = self._hall.now(), self._hall.leases
        for node in self.directory.lose(now):
            self._went(node, lost=True)
        for known in self.directory.by_node.values():
            if not known.is_present and now - (known.heard_at or 0.0) > self._settings.absent_s:
                leases.take_back(known.node)
        for node in leases.holders - self.directory.by_node.keys():  # they were forgotten
            leases.take_back(node)
        self._answered = {node: one for node, one in self._answered.items() if node in self.directory.by_node}
        self._told = {node: told for node, told in self._told.items() if node in self._answered}
        await self.decide()
        await self.seal_reports()
        self._ask()

    @property
    def all_sealed(self) -> bool:
        """Whether each report is in a row."""
        return self._store.unsealed.is_empty

    async def seal_reports(self) -> None:
        """Seal what has come since the last row, unless another program holds the lock of the ledger."""
        leases = self._hall.leases
        if pending := self._store.unsealed.take():
            measured = self.sketches.measured(self.directory.running)
            try:
                await self._sealer.seal(pending, leases.packed, measured)
            except Locked as error:
                log.warning("%d reports are not sealed, and wait for the next row: %s", len(pending), error)
                self._store.unsealed.put_back(pending)
                return
            self._show_measured(measured)
            event = sealed_beat(self._sealer.step - 1, self._hall.now(), pending, self.figures, self._hall.state)
            self.figures.beats = self._sealer.step
            if not math.isnan(event.loss):
                self.figures.loss = event.loss
            self._hall.events.tell(event)

    def _ask(self) -> None:
        """Ask for the sketches of an iteration, unless some are awaited, and for held-out losses there if due."""
        directory, before = self.directory, self.sketches.measure_at
        if directory.phase is Phase.TRAINING and all(one.iteration < self._settings.steps for one in directory.running):
            self.sketches.ask(directory.ahead)
        if (iteration := self.sketches.measure_at) != before:
            nodes = [known.node for known in directory.running if known.enters_at is None and self._may_measure(known)]
            unfinished = self._held_out.iteration
            if self._held_out.begin(iteration, nodes):
                self._given_up(unfinished, "before the next measurement")

    def _may_measure(self, known: Participant) -> bool:
        """Whether a node has contributed enough, in this process, to be asked for held-out losses."""
        least = MEASURES_AFTER * self._settings.samples * self._hall.state.tokens_a_sample
        return self._hall.counts.of(known.node).tokens >= least

    def _given_up(self, iteration: int, words: str) -> None:
        text = f"iteration {iteration}: not all nodes measured their part of the held-out samples {words}"
        tell(log, logging.WARNING, "coordinator.not_measured", text, set=None, reason=text)

    def _show_measured(self, measured: Measurement | None) -> None:
        if measured is None:
            return
        figures = self.figures
        figures.measured_at = measured.iteration
        figures.disagreement, figures.error, figures.in_steps = measured.distance, measured.error, measured.in_steps
        steps = f", {measured.in_steps:.3g} steps" if measured.in_steps is not None else ""
        nodes, iteration = len(measured.sketches), measured.iteration
        text = f"{nodes} nodes are {measured.distance:.4g} apart{steps} at iteration {iteration}"
        tell(
            log,
            logging.INFO,
            "coordinator.disagreement",
            text,
            iteration=iteration,
            nodes=nodes,
            distance=measured.distance,
            in_steps=measured.in_steps,
        )
        event = DisagreementMeasured(iteration, nodes, measured.distance, measured.in_steps)
        self._hall.events.tell(event)

    def _went(self, node: str, *, lost: bool) -> None:
        self.sketches.drop(node)
        iteration = self._held_out.iteration
        if self._held_out.left(node):
            self._given_up(iteration, "before one of them went")
        self.figures.edges.pop(node, None)
        member = self._hall.members.by_id.get(node)
        if member is not None and member.reports:
            member.reports = False
            self._hall.events.tell(NodeWent(node, lost=lost))
