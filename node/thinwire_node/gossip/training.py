"""The iterations of a node in a gossip run. They outlive its sessions with the coordinator.

While the coordinator is away, the node goes on as far as its lease and its topology reach, and then waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable

from thinwire_common.logs import tell
from thinwire_common.within import set_or_after
from thinwire_node.gossip.neighbours import Errands, Neighbours
from thinwire_node.gossip.port import BeatAnswer, BeatReport, MakeLines
from thinwire_node.gossip.unreported import Unreported
from thinwire_node.gossip.work import Finished, GossipWork, Sketched
from thinwire_node.runtime import Clocks
from thinwire_node.session.evaluation import Evaluation
from thinwire_node.session.prefetch import Prefetch
from thinwire_node.session.record import Record
from thinwire_node.settings import NodeOptions
from thinwire_node.training.failures import Interrupted
from thinwire_proto.blobs import BlobMissing
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec
from thinwire_proto.exact.replica import Replica
from thinwire_proto.gossip.iteration import Mix
from thinwire_proto.gossip.reports import MISSED_MAX, Report, sketch_hash
from thinwire_proto.limits import LOOK_AGAIN_S

log = logging.getLogger("thinwire.node")

Deposit = Callable[[int, bytes, bytes], Awaitable[str]]
"""Sends iteration, head and parameters: `GossipExchange.deposit`."""


class GossipTraining:
    """first: the parameters that all nodes begin with. make_lines: makes the lines to other nodes."""

    def __init__(
        self,
        work: GossipWork,
        first: Replica,
        make_lines: MakeLines,
        record: Record,
        options: NodeOptions,
        clocks: Clocks,
    ) -> None:
        self.work = work
        self.doing = "waiting: for the coordinator"
        """The state for people."""
        self.replica: Replica | None = first
        """The parameters that all nodes begin with."""
        self.finished_event = asyncio.Event()
        """Set when all iterations are finished, or enough of them for this process."""
        self.report_now = asyncio.Event()
        """Set when the next report should not wait for its beat."""
        self._record = record
        self._clocks = clocks
        self._options = options
        assert isinstance(work.contract.rule, OwnStepsSpec)
        self._rule = work.contract.rule
        self._saved = work.saved
        self._unreported = Unreported(*work.unreported)
        self._reported = work.saved.iteration
        """The iteration that the newest answered report names."""
        self._through = 0
        """The iterations that the newest answer allows: those of its lease, from the one that its report names. A node
        that takes a peer's iteration stands further than the coordinator knows, and waits here for its next answer.
        So an amendment that the coordinator has decided reaches it in time."""
        self._prefetch: Prefetch | None = None
        self._evaluation: Evaluation | None = None
        self._decisions: deque[Mix] = deque()  # in the last iteration, a second one can follow at once
        self._changed = asyncio.Event()
        self._leaving = False
        self._is_computing = self._begins_anew = False
        self._iterations_here = 0
        self._end = asyncio.Lock()
        self._is_handed_in = False
        self._running: asyncio.Task[None] | None = None
        self.errands = Errands(self._stop_iterations)
        self.neighbours = Neighbours(work, make_lines, self.errands, self._note, self._unreported.missed.add)

    # sessions

    def start(self) -> asyncio.Task[None]:
        """Start the iterations, unless they run already. The task ends when they do."""
        if self._running is None:
            self._running = asyncio.ensure_future(self._run())
            self.errands.watch(self._running)
        return self._running

    @property
    def is_under_way(self) -> bool:
        """Whether iterations run, with or without a session."""
        return self._running is not None and not self._running.done()

    def use(self, prefetch: Prefetch, evaluation: Evaluation) -> None:
        """Take data from this prefetch, and parts to measure from this evaluation, from now on."""
        self._prefetch, self._evaluation = prefetch, evaluation
        prefetch.renew(self.work.lease)
        self._changed.set()

    def wake(self) -> None:
        """The data have changed."""
        self._changed.set()

    def report(self) -> BeatReport:
        """The report of the next beat."""
        saved, new = self._saved, self._unreported
        sketched = new.sketched or Sketched(0, b"", saved.step_norm)
        report = Report(
            topology=self.neighbours.topology,
            iteration=saved.iteration,
            head=saved.head,
            samples=new.samples,
            loss=new.loss_sum / new.samples if new.samples else 0.0,
            compute_ms=round(new.compute_s * 1000),
            trained_through=saved.trained_through,
            sketch_hash=sketch_hash(sketched.sketch),
            sketch_iteration=sketched.iteration,
            missed=tuple(sorted(self._missed())),
            step_norm=sketched.step_norm,
        )
        neighbours = self.neighbours
        lines = neighbours.seen_lines(self._record.traffic)
        return BeatReport(report, sketched.sketch, neighbours.lines.listens_at, lines)

    def _missed(self) -> list[int]:
        """Those for which the node has waited before those without a line: these are named again in the next report."""
        waited_for = self._unreported.missed
        return [*sorted(waited_for), *sorted(self.neighbours.lost - waited_for)][:MISSED_MAX]

    def reported(self, beat: BeatReport) -> None:
        """The coordinator has answered a report."""
        self._unreported.reported(beat.report)
        self._reported = beat.report.iteration

    async def take(self, answer: BeatAnswer) -> None:
        """Take amendments, lease and topology of an answer. Raises a ThinwireError if this machine cannot go on under
        the amended contract."""
        if answer.contract is not None:
            await self.work.amend(answer.contract)
        self.work.lease.renew(answer.lease)
        self._through = self._reported + math.ceil(sum(map(len, answer.lease)) / self._rule.samples)
        self.work.measure_at = answer.measure_at
        if self._evaluation is not None:
            self._evaluation.want(answer.evaluate, answer.measure_at)
        if self._prefetch is not None:
            self._prefetch.renew(self.work.lease)
        if answer.assignment is not None:
            self._note(await self.work.event(self.work.member.assign, answer.assignment))
            self.neighbours.assign(answer.assignment.topology, answer.assignment.since, answer.places)
            text = f"topology {answer.assignment.topology}, from iteration {answer.assignment.start}"
            text += f"; peers: {self.neighbours.names(answer.assignment.since) or 'none'}"
            peers = len(answer.assignment.since)
            tell(log, logging.INFO, "node.topology", text, topology=answer.assignment.topology, peers=peers)
        self._changed.set()

    # decisions

    def _note(self, mix: Mix | None) -> None:
        if mix is not None and self.finished_event.is_set() and self.work.is_done:
            self.errands.begin(self._mix_late(mix))
        elif mix is not None:
            self._decisions.append(mix)
            self._changed.set()

    async def _mix_late(self, mix: Mix) -> None:
        """Mix a message that has come after the last iteration: the peer has mixed this node's. Parameters that are
        handed in stay as they are."""
        async with self._end:
            if self._is_handed_in:
                return
            self.work.unreported = self._unreported.counted
            await self.work.mix_late(mix)
            before, self._saved = self._saved, self.work.saved
            self.neighbours.confirm(before.confirmed, self._saved.confirmed)

    async def hand_in(self, deposit: Deposit) -> str:
        """Hand in the parameters. Returns why they were refused, or nothing."""
        async with self._end:
            work = self.work
            refused = await deposit(work.finished, work.saved.head, await work.parameters())
            self._is_handed_in = not refused
        return refused

    def _stop_iterations(self, reason: str) -> None:
        if self._running is not None:
            self._running.cancel(reason)

    # iterations

    async def _run(self) -> None:
        work, rounds = self.work, self._options.rounds
        if work.view.iteration < 0:
            while not work.view.may_begin:
                if self._leaving:
                    return
                await self._wait("waiting: for peers", "wait")
            self.neighbours.send(await work.begin_first())
            self._saved = work.saved
        while not work.is_done and (rounds is None or self._iterations_here < rounds):
            if self._leaving or not await self._compute():
                return
            decision = await self._decided()
            work.unreported = self._unreported.counted
            self._took(await work.finish(decision))
        self.doing = "delivering: all iterations are finished"
        self.finished_event.set()
        self.report_now.set()
        late, self._decisions = self._decisions, deque()
        for mix in late:
            self._note(mix)

    async def _compute(self) -> bool:
        """Take the gradient of an iteration. False if the node leaves before it has it.

        An iteration that has passed over samples ends with those that the lease has. The coordinator learns of them
        with the next report alone, which names the samples of whole iterations, and would grant no others before."""
        work, skipped = self.work, self._record.samples_skipped
        if work.view.iteration >= self._through:
            self.report_now.set()
        while work.view.iteration >= self._through:
            if self._leaving:
                return False
            await self._wait("waiting: for a lease from the coordinator", "wait")
        self._is_computing, self._begins_anew = True, False
        try:
            return await self._gradient(skipped)
        finally:
            self._is_computing = False

    async def _gradient(self, skipped: int) -> bool:
        """See `_compute`. skipped: the samples that had been passed over before."""
        work, rule = self.work, self._rule
        await work.begin_gradient()
        left = rule.samples
        while left or self._begins_anew:
            if not await self._rest():
                return False
            if self._begins_anew:
                return await self._compute()
            size = min(left, rule.micro_batch_max(self._record.at_once.samples))
            ready = self._ready(size)
            if not ready:
                if self._leaving:
                    return False
                if work.lease.left < size and self._record.samples_skipped > skipped:
                    return True
                await self._wait_for_data(size)
                continue
            try:
                await self._measure(size)
                self.doing, began = "training", self._clocks.now()
                trained = await work.train(ready)
            except Interrupted:
                return False
            except BlobMissing as error:
                assert self._prefetch is not None
                self._prefetch.lost(error.blob, ready)
                continue
            left -= trained
            now = self._clocks.now()
            self._record.trained(trained, now - began, now - began, now)
        return True

    async def _rest(self) -> bool:
        """Let the machine rest as long as its owner wants. False if the node leaves meanwhile."""
        record, now = self._record, self._clocks.now
        while record.resting or record.lent.rests_until(now()) > now():
            if self._leaving:
                return False
            owed = "waiting: resting, because of --max-compute"
            await self._wait(
                record.resting or owed, "rest", math.inf if record.resting else record.lent.rests_until(now())
            )
        return True

    async def _measure(self, size: int) -> None:
        """Measure the parts of this iteration that are ready. Raises Interrupted."""
        evaluation = self._evaluation
        while evaluation is not None and (ready := evaluation.samples_ready):
            self.doing, began = "measuring the held-out loss", self._clocks.now()
            samples = min(ready, size)
            await evaluation.measure(samples)
            now = self._clocks.now()
            self._record.measured(samples, now - began, now)

    def _ready(self, size: int) -> int:
        """The samples of the next micro-batch; 0 while lease or data are missing. Always `size`, so that a node that
        comes back computes the same sums, unless data cannot be read."""
        if self._prefetch is None:
            return 0
        self._prefetch.pass_over(self.work.lease)
        ready = self._prefetch.trainable(self.work.lease, size)
        return ready if ready == size or self._prefetch.skips_within(self.work.lease, size) else 0

    async def _wait_for_data(self, size: int) -> None:
        if self.work.lease.left >= size:
            if self._prefetch is not None:
                self._prefetch.look_again()
            await self._wait("waiting: for the data of the lease", "data")
        else:
            await self._wait("waiting: for a lease from the coordinator", "wait")

    async def _wait(self, doing: str, phase: str, until: float = math.inf) -> None:
        self.doing, began = doing, self._clocks.now()
        await set_or_after(self._changed, max(0.0, min(LOOK_AGAIN_S, until - began)))
        self._changed.clear()
        self._record.phases[phase].add(self._clocks.now() - began)

    async def _decided(self) -> Mix:
        """The decision to mix, once all messages are in or the patience is over."""
        work, now = self.work, self._clocks.now
        self._note(await work.event(work.member.computed, now()))
        began = now()
        while not self._decisions:
            self.doing = f"waiting: for messages of {self.neighbours.names(work.view.awaited) or 'peers'}"
            deadline = work.view.deadline
            wait_s = LOOK_AGAIN_S if deadline is None else max(0.0, deadline - now())
            await set_or_after(self._changed, min(wait_s, LOOK_AGAIN_S))
            self._changed.clear()
            if not self._decisions and deadline is not None and now() >= deadline:
                self._note(await work.event(work.member.tick, now()))
        self._record.phases["peers"].add(now() - began)
        return self._decisions.popleft()

    def _took(self, finished: Finished) -> None:
        """An iteration is in the journal: its messages may leave."""
        before, self._saved = self._saved, finished.saved
        gradient = finished.gradient
        self.neighbours.send(finished.sending)
        self.neighbours.confirm(before.confirmed, self._saved.confirmed)
        self._unreported.took(finished, self._record.lent.share)
        for peer, reason in finished.unreadable.items():
            self.neighbours.leave_out(peer, reason)
        if gradient.samples:
            self._record.loss = gradient.loss
        self._record.dropped += gradient.dropped
        self._record.counted += 1
        self._record.tokens += gradient.samples * self._record.tokens_a_sample
        self._iterations_here += 1
        if self.neighbours.have_ended_edges:
            self.neighbours.open()

    # the end

    def give_back(self) -> None:
        """The coordinator gives what is left of the lease to others, and what is not in the journal. So a gradient that
        is not whole begins anew, with the next lease. One that is whole counts, though others may train on it too."""
        lease, self._begins_anew = self.work.lease, self._is_computing
        lease.give_back(self.work.saved.trained_through if self._is_computing else lease.trained_through)
        self._through = 0
        self._changed.set()

    def leave(self) -> None:
        """Stop after this iteration."""
        self._leaving = True
        self._changed.set()

    async def stop(self) -> None:
        """Stop now. What is not in the journal yet is dropped."""
        self.work.interrupt()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self.errands.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await self.work.drain()
        await self.neighbours.lines.close()
        saved = self.work.saved
        text = f"left after iteration {saved.iteration}, head {saved.head.hex()[:16]}"
        tell(log, logging.INFO, "node.left_swarm", text, iteration=saved.iteration, head=saved.head.hex())
