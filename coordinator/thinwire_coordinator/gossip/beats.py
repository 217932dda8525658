"""Takes the reports of nodes, answers with leases and topologies, and seals a row of the ledger in each beat.

Everything here runs on the event loop and returns at once; workers do the slow jobs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import statistics
from dataclasses import dataclass
from typing import Literal

from thinwire_common.logs import tell
from thinwire_coordinator.gossip.answers import BeatAnswer, PeerPlace, ReportRefused
from thinwire_coordinator.gossip.directory import Collect, Phase
from thinwire_coordinator.gossip.figures import GossipFigures, SeenPeer
from thinwire_coordinator.gossip.formation import Plan, form
from thinwire_coordinator.gossip.held_out import HeldOutLosses
from thinwire_coordinator.gossip.judging import heard_of, is_repeated, why_refuse
from thinwire_coordinator.gossip.measurements import Measurement
from thinwire_coordinator.gossip.participants import Participant
from thinwire_coordinator.gossip.rows import RowSealer
from thinwire_coordinator.gossip.sealed_beat import sealed_beat
from thinwire_coordinator.gossip.settings import LEASE_FIRST, LEASE_RUNS_MAX, GossipSettings
from thinwire_coordinator.gossip.sketches import Sketches
from thinwire_coordinator.gossip.store import Store
from thinwire_coordinator.gossip.unsealed import SealedReport
from thinwire_coordinator.hall.access.door import Denied, DoorReason
from thinwire_coordinator.hall.events import ContributionOffered, DisagreementMeasured, NodeCame, NodeWent
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.hall.workers import Job
from thinwire_proto import limits
from thinwire_proto.errors import Locked
from thinwire_proto.gossip.reports import SignedReport
from thinwire_proto.gossip.seen_lines import SeenLines

log = logging.getLogger("thinwire.coordinator")

MEASURES_AFTER = 16
"""Iterations whose samples a node must have reported before it is asked for held-out losses."""
STAGES: dict[Phase, Literal["training", "deposit", "complete"]] = {
    Phase.TRAINING: "training",
    Phase.COLLECTING: "deposit",
    Phase.COMPLETE: "complete",
}


@dataclass(frozen=True)
class _Answered:
    """The newest report of a node's session."""

    session: bytes
    number: int
    hash: bytes


class Beats:
    """deposited: the nodes whose parameters have come. sketches: those that nodes have sent."""

    def __init__(
        self, hall: Hall, settings: GossipSettings, sealer: RowSealer, sketches: Sketches, held_out: HeldOutLosses
    ) -> None:
        self._hall = hall
        self._settings = settings
        self._sealer = sealer
        self.sketches = sketches
        self._held_out = held_out
        self._store = Store(hall, settings.directory)
        self.directory = self._store.directory
        if sealer.is_complete:
            self.directory.phase = Phase.COMPLETE
        self.deposited: set[str] = set()
        self.is_closed = self._sealer.is_complete
        """Whether rows of beats are over: the next row is that of the mean."""
        self._answered: dict[str, _Answered] = {}
        self._forming = asyncio.Lock()
        self.figures = GossipFigures(codec=settings.codec, beats=sealer.step)
        self.show()

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
        await self._store.keep()

    async def beat(
        self, member: Member, signed: SignedReport, sketch: bytes, address: str = "", lines: SeenLines | None = None
    ) -> BeatAnswer:
        """Take a report, and return its answer once all that it promises is on disk. Raises ReportRefused.

        address: HOST:PORT at which its peers reach the node; empty if it does not listen. lines: for those who watch.
        """
        node, before = member.node_id, self._answered.get(member.node_id)
        was_there = (known := self.directory.by_node.get(node)) is not None and known.is_restored
        if before is not None and before.session == signed.session and signed.number <= before.number:
            if signed.hash != before.hash:
                text = f"report {signed.number} of this session came already, with another content"
                raise ReportRefused(Denied(DoorReason.MALFORMED, text))
        else:
            self._take(member, signed, sketch, address)
            self._answered[node] = _Answered(signed.session, signed.number, signed.hash)
        if lines is not None:
            self._see(node, lines, was_there=was_there)
        await self.decide()
        answer = self._answer(self.directory.by_node[node], signed.report.topology)
        await self._store.keep()
        return answer

    def _take(self, member: Member, signed: SignedReport, sketch: bytes, address: str) -> None:
        node, report, leases = member.node_id, signed.report, self._hall.leases
        known = self.directory.by_node.get(node)
        says = report.samples > 0 or (known is not None and report.iteration != known.iteration)
        says = says and not self.is_closed
        before = self._answered.get(node)
        is_first = before is None or before.session != signed.session
        denied = why_refuse(signed, member.public_key, self.directory, leases, is_first=is_first)
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
            hall = self._hall
            elapsed_s = self._hall.now() - hall.began
            compute_s = hall.counts.believed_s(node, report.compute_ms, elapsed_s)
            self._hall.events.tell(ContributionOffered(node, 0, compute_s))

    def _see(self, node: str, lines: SeenLines, *, was_there: bool) -> None:
        """Take the lines of a node, and show them with the ids of its peers. was_there: before this coordinator began,
        and it has not reported since."""
        hall, sent, received = self._hall, lines.direct_sent, lines.direct_received
        elapsed_s = self._hall.now() - hall.began
        hall.counts.direct_is(node, sent, received, elapsed_s, is_older=was_there)
        named = ((self.directory.of_member(edge.member), edge) for edge in lines.edges)
        edges = tuple(
            SeenPeer(known.node, edge.line, None if (edge.iteration or 0) > self._settings.steps else edge.iteration)
            for known, edge in named
            if known is not None
        )
        self.figures.edges[node] = edges

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
        self.show()

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

    def _answer(self, known: Participant, topology: int) -> BeatAnswer:
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
            text = "waiting for the parameters of others" if known.node in self.deposited else "send the parameters"
            return BeatAnswer("deposit", text, soon_s)
        return self._training(known, topology, soon_s)

    def _training(self, known: Participant, topology: int, soon_s: float) -> BeatAnswer:
        """The answer to a member that trains."""
        directory, beat_s = self.directory, self._settings.beat_s
        if (pause := self._hall.pause) is not None:  # without a lease, a node stops within the iteration
            left_s = pause.left_s(self._hall.surroundings.wall())
            return BeatAnswer("paused", pause.text, soon_s, resumes_in_s=left_s)
        leases, measure_at = self._hall.leases, self.sketches.measure_at
        wanted = self._settings.lease_samples(directory.pace_of(known), known.iteration)
        next_s = soon_s if self._is_awaited(known, soon_s) else beat_s
        leases.grant(known.node, wanted, self._sealer.step)
        lease = leases.granted(known.node)[:LEASE_RUNS_MAX]
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

    def _place(self, member: int) -> PeerPlace:
        known = self.directory.of_member(member)
        if known is None:  # it was forgotten
            return PeerPlace(member, bytes(32), "")
        return PeerPlace(member, known.public_key, known.address)

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
        await self.decide()
        await self.seal_reports()
        self._ask()
        self.show()

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
            self.show()
            event = sealed_beat(self._sealer.step - 1, self._hall.now(), pending, self.figures, self._hall.contract)
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
        least = MEASURES_AFTER * self._settings.samples * self._hall.contract.model.context
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

    def show(self) -> None:
        """Bring the figures up to date."""
        directory, figures = self.directory, self.figures
        running = directory.running
        members = running or [known for known in directory.by_node.values() if directory.runs(known)]  # all may be away
        done = [known.iteration for known in members] or [0]
        begun = directory.number > 0 or directory.phase is not Phase.TRAINING
        figures.stage = STAGES[directory.phase] if begun else "waiting"
        figures.missing = 0 if begun else max(0, directory.settings.nodes_least - len(directory.present))
        figures.topology = directory.number
        figures.members = len(directory.topology.plan.members) if directory.topology else 0
        figures.present = len(running)
        figures.iterations = min(done), int(statistics.median_low(done)), max(done)
        figures.deposits = len(self.deposited)
