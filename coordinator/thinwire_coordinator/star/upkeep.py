"""Upkeep of a star run: measures the held-out loss, writes snapshots, and deletes old files."""

from __future__ import annotations

import logging
import math
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire_common.logs import tell
from thinwire_coordinator.hall.ledger.kept_replica import KeptReplica
from thinwire_coordinator.hall.ledger.retention import Retention
from thinwire_coordinator.hall.measurement import MeasureHere
from thinwire_coordinator.hall.run import Upkeep
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.star.evaluations import Evaluations, Result
from thinwire_coordinator.star.feed import Feed

log = logging.getLogger("thinwire.coordinator")


@dataclass(eq=False)
class StarUpkeep(Upkeep):
    """every: steps between two measurements. evaluations: measure by nodes; None: the coordinator measures."""

    feed: Feed
    retention: Retention
    every: int
    evaluations: Evaluations | None = None

    async def works(self) -> Sequence[Coroutine[Any, Any, None]]:
        measured = await self.measuring.newest_step()
        if self.evaluations is None:
            return [self._follow(measured)]
        self.evaluations.begin(self.every, self.measuring.samples, measured)
        return [self._follow(measured), self._collect(self.evaluations)]

    async def _follow(self, measured: int | None) -> None:
        """After each sealed step, measure the loss if that is due, and write a snapshot if that is due."""
        by_nodes = self.evaluations is not None
        if measured is not None:  # a run that goes on shows what its model writes, also when it is complete
            copy = await self.hall.copies.take()
            await self.measuring.sample(copy, copy.step)
            del copy
        while True:
            step, newest = self.feed.step, self._newest()  # going back adds one too, and deletes those before it
            last = step == self.hall.contract.schedule.steps
            # nodes leave after the last step, so the coordinator measures it in any case
            due = last or (not by_nodes and (measured is None or step - measured >= self.every))
            to_measure = due and (measured is None or step > measured)
            to_save = step > newest and (
                last or await self.hall.workers.once_unlocked(Job.WEIGH_SNAPSHOT, self._is_due, newest)
            )
            if to_measure or to_save:
                # work on a copy, so that neither a measurement nor a slow disk delays the replica
                copy = await self.hall.copies.take()
                if to_measure:
                    measured = copy.step
                    await self.measuring.measure_all(copy, copy.step)
                if to_save and copy.step > self._newest():
                    await self._save(copy)
                del copy  # with its file
            await self.hall.sealed.wait()
            self.hall.sealed.clear()

    def _newest(self) -> int:
        return self.hall.state.snapshot_steps()[-1]

    def _is_due(self, newest: int) -> bool:
        """Whether the bodies since the newest snapshot are larger than it.

        So a node that catches up never downloads more than about twice a snapshot.
        """
        state = self.hall.state
        return state.upkeep_ledger.body_bytes_since(newest) > state.snapshot_path(newest).stat().st_size

    async def _save(self, copy: KeptReplica) -> None:
        path = self.hall.state.snapshot_path(copy.step)
        await self.hall.workers.submit(Job.WRITE_SNAPSHOT, copy.become_snapshot, path)
        text = f"step {copy.step}: snapshot written"
        tell(log, logging.INFO, "coordinator.snapshot_written", text, step=copy.step)
        await self.hall.workers.once_unlocked(Job.DELETE_OLD, self.retention.trim)

    async def _collect(self, evaluations: Evaluations) -> None:
        """Record what nodes measured, and measure the parts that they did not."""
        while True:
            await self._take(evaluations, await evaluations.results.get())

    async def _take(self, evaluations: Evaluations, result: Result) -> None:
        """Take one result or part of a measurement by nodes."""
        if not evaluations.wants(result):
            return
        action, copy, measuring = result.action, await result.copy, self.measuring
        if isinstance(action, MeasureHere):
            part = action.part
            numbers = measuring.spread(part.name, part.spread)[part.start : part.start + part.count]
            loss = await measuring.measure_part(copy, part.name, numbers)
            evaluations.measured_here(result.measurement, part, math.nan if loss is None else loss)
            return
        if action.name in measuring.damaged and not math.isfinite(action.loss):
            return  # it is the coordinator's own part
        await measuring.record(action.step, action.name, action.loss, action.measured_by)
        if result.measurement.complete and evaluations.results.empty():
            self.hall.measured_step = max(self.hall.measured_step, action.step)
            if math.isfinite(action.loss) and action.step:
                await measuring.sample(copy, copy.step)
