"""Upkeep of a run in progress: measures the held-out loss, writes snapshots, and deletes old files."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from thinwire_common.logs import tell
from thinwire_coordinator.hall.evaluation import HeldOut
from thinwire_coordinator.hall.events import LossMeasured, Sampled
from thinwire_coordinator.hall.generation import SampleBudget, first_prompt
from thinwire_coordinator.hall.ledger.kept_replica import KeptReplica
from thinwire_coordinator.hall.ledger.retention import Retention
from thinwire_coordinator.hall.ledger.state_directory import SETS_MAX
from thinwire_coordinator.hall.measurement import MeasuredBy, MeasureHere, SetMeasured
from thinwire_coordinator.hall.swarm import Swarm
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.star.evaluations import Result
from thinwire_proto.errors import Damaged
from thinwire_proto.exact.replica import Replica
from thinwire_proto.task import HeldOutSet

log = logging.getLogger("thinwire.coordinator")


class Upkeep:
    """Does the upkeep after sealed steps.

    replica: the coordinator's own. evaluate_every: steps between two measurements. by_nodes: whether nodes measure.
    samples: whether to generate sample texts for the page. by_each: without a centre, what nodes measured on the way.
    """

    def __init__(
        self,
        swarm: Swarm,
        replica: Replica,
        retention: Retention,
        held_out: HeldOut,
        evaluate_every: int,
        *,
        samples: bool,
        by_nodes: bool = False,
        by_each: asyncio.Queue[SetMeasured] | None = None,
    ) -> None:
        self._swarm = swarm
        self._state = swarm.state
        self._workers = swarm.workers
        self._events = swarm.events
        self._steps = swarm.view.steps
        self._replica = replica
        self._retention = retention
        self._evaluate_every = evaluate_every
        self._by_nodes = by_nodes
        self._by_each = by_each
        self._samples = SampleBudget() if samples else None
        self._held_out = held_out
        self._damaged: set[str] = set()  # held-out sets that could not be read the last time
        if (found := len(swarm.state.data.held_out_sets())) > SETS_MAX:
            log.warning("there are %d held-out sets; the loss is measured on the first %d", found, SETS_MAX)

    def stop(self) -> None:
        """Abort the current measurement and any later one."""
        self._held_out.stop()

    async def run(self) -> None:
        """Do the upkeep until cancelled."""
        recorded = await self._workers.once_unlocked(Job.READ_STATUS, self._state.watch_ledger.recorded)
        measured = max((step for step, _ in recorded.newest.values()), default=None)
        works = [self._follow(measured)]
        if self._by_each is not None:
            works.append(self._collect_of_each(self._by_each))
        elif self._by_nodes:
            self._swarm.evaluations.begin(self._evaluate_every, self._held_out.samples, measured)
            works.append(self._collect())
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _follow(self, measured: int | None) -> None:
        """After each sealed step, measure the loss if that is due, and write a snapshot if that is due."""
        newest = self._state.snapshot_steps()[-1]
        while True:
            gossip = self._swarm.view.gossip
            step = self._swarm.feed.step if gossip is None else self._step_of(self._replica)
            last = step == self._steps if gossip is None else gossip.stage == "complete"
            # nodes leave after the last step, so the coordinator measures it in any case
            due = last or (not self._by_nodes and (measured is None or step - measured >= self._evaluate_every))
            to_measure = due and (measured is None or step > measured)
            to_save = (
                gossip is None
                and step > newest
                and (last or await self._workers.once_unlocked(Job.WEIGH_SNAPSHOT, self._is_due, newest))
            )
            if to_measure or to_save:
                # work on a copy, so that neither a measurement nor a slow disk delays the replica
                copy = await self._swarm.copies.take()
                if to_measure:
                    measured = self._step_of(copy)
                    await self._measure_all(copy)
                if to_save:
                    newest = copy.step
                    await self._save(copy)
                del copy  # with its file
            await self._swarm.sealed.wait()
            self._swarm.sealed.clear()

    def _step_of(self, replica: Replica) -> int:
        """The step of a replica. In a run without a centre, it is the first state or the final mean, and a step of the
        replica is a row: so the iteration."""
        if self._swarm.view.gossip is None:
            return replica.step
        return self._steps if replica.step else 0

    def _is_due(self, newest: int) -> bool:
        """Whether the bodies since the newest snapshot are larger than it.

        So a node that catches up never downloads more than about twice a snapshot.
        """
        return self._state.upkeep_ledger.body_bytes_since(newest) > self._state.snapshot_path(newest).stat().st_size

    async def _save(self, copy: KeptReplica) -> None:
        path = self._state.snapshot_path(copy.step)
        await self._workers.submit(Job.WRITE_SNAPSHOT, copy.become_snapshot, path)
        text = f"step {copy.step}: snapshot written"
        tell(log, logging.INFO, "coordinator.snapshot_written", text, step=copy.step)
        await self._workers.once_unlocked(Job.DELETE_OLD, self._retention.trim)

    async def _collect(self) -> None:
        """Record what nodes measured, and measure the parts that they did not."""
        while True:
            await self._take(await self._swarm.evaluations.results.get())

    async def _collect_of_each(self, measured: asyncio.Queue[SetMeasured]) -> None:
        """Record what the nodes measured of their own parameters."""
        sets = {found.name: found for found in self._state.held_out_sets}
        while True:
            found = await measured.get()
            await self._record(found.step, sets[found.name], found.loss, found.measured_by, "single nodes: ")
            self._swarm.registry.measured_step = max(self._swarm.registry.measured_step, found.step)

    async def _take(self, result: Result) -> None:
        """Take one result or part of a measurement by nodes."""
        if not self._swarm.evaluations.wants(result):
            return
        sets = {found.name: found for found in self._state.held_out_sets}
        action, copy = result.action, await result.copy
        if isinstance(action, MeasureHere):
            part = action.part
            numbers = sets[part.name].spread(part.spread)[part.start : part.start + part.count]
            loss = await self._measure(part.name, self._held_out.measure_part, copy, part.name, numbers)
            self._swarm.evaluations.measured_here(result.measurement, part, math.nan if loss is None else loss)
            return
        if action.name in self._damaged and not math.isfinite(action.loss):
            return  # it is the coordinator's own part
        await self._record(action.step, sets[action.name], action.loss, action.measured_by)
        if result.measurement.complete and self._swarm.evaluations.results.empty():
            self._swarm.registry.measured_step = max(self._swarm.registry.measured_step, action.step)
            if math.isfinite(action.loss) and action.step:
                await self._sample(copy)

    async def _measure_all(self, copy: Replica) -> None:
        """Measure the loss on each held-out set, and generate a sample text if none has diverged."""
        finite, step = True, self._step_of(copy)
        for held_out in self._state.held_out_sets:
            loss = await self._measure(held_out.name, self._held_out.measure, copy, held_out)
            if loss is not None:
                await self._record(step, held_out, loss, "coordinator")
            finite = finite and loss is not None and math.isfinite(loss)
        self._swarm.registry.measured_step = step
        if finite and copy.step:
            await self._sample(copy)

    async def _measure(self, name: str, measure: Callable[..., float], *arguments: object) -> float | None:
        """The loss on samples of the set `name`. None if they are damaged: the run goes on without this measurement."""
        try:
            loss = await self._workers.submit(Job.MEASURE_LOSS, measure, *arguments)
        except Damaged as error:
            self._damaged.add(name)
            text = f"the held-out loss on {name!r} is not measured: {error}"
            tell(log, logging.ERROR, "coordinator.not_measured", text, set=name, reason=str(error))
            return None
        self._damaged.discard(name)
        return loss

    async def _record(
        self, step: int, held_out: HeldOutSet, loss: float, measured_by: MeasuredBy, of: str = ""
    ) -> None:
        """of: what was measured, in words, unless it is the replica."""
        where = f"{'step' if self._swarm.view.gossip is None else 'iteration'} {step}: {of}"
        name, bits_per_nat = held_out.name, held_out.bits_per_nat(self._state.contract.model.context)
        if math.isfinite(loss):
            ledger = self._state.upkeep_ledger
            await self._workers.once_unlocked(Job.WRITE_LOSS, ledger.record_loss, step, name, loss, measured_by)
            bits = loss * bits_per_nat if bits_per_nat else None
            tell(
                log,
                logging.INFO,
                "coordinator.loss_measured",
                f"{where}held-out loss {loss:.3f} nats per token on {name!r}",
                step=step,
                set=name,
                loss=loss,
                bits_per_byte=bits,
                measured_by=measured_by,
            )
        else:
            text = f"{where}the held-out loss on {name!r} is not finite; the run has diverged"
            tell(log, logging.WARNING, "coordinator.diverged", text, step=step, set=name)
        self._events.tell(LossMeasured(step, name, loss, measured_by))

    async def _sample(self, copy: Replica) -> None:
        """Generate a sample for the page, if `SampleBudget` allows it."""
        step = self._step_of(copy)
        if self._samples is None or not self._samples.due(time.process_time(), last=step == self._steps):
            return
        prompt = first_prompt(self._state.data.tokenizer)
        work = self._held_out.sample, copy, prompt, copy.step
        text, seconds = await self._workers.submit(Job.WRITE_SAMPLE, *work)
        self._samples.took(seconds)
        if text is not None:
            self._events.tell(Sampled(step, prompt, text))
