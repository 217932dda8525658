"""Upkeep of a gossip run: records what nodes measure, and measures the first state and the mean."""

from __future__ import annotations

import asyncio

from thinwire_coordinator.gossip.figures import GossipFigures
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.measurement import SetMeasured
from thinwire_coordinator.hall.measuring import Measuring


class Upkeep:
    """by_nodes: what nodes measured on the way."""

    def __init__(
        self, hall: Hall, figures: GossipFigures, measuring: Measuring, by_nodes: asyncio.Queue[SetMeasured]
    ) -> None:
        self._hall = hall
        self._figures = figures
        self._measuring = measuring
        self._by_nodes = by_nodes

    def stop(self) -> None:
        """Abort the current measurement and any later one."""
        self._measuring.stop()

    async def run(self) -> None:
        """Do the upkeep until cancelled."""
        tasks = [asyncio.ensure_future(work) for work in (self._follow(), self._collect())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _follow(self) -> None:
        """Measure the loss of the first state, and of the mean once it is sealed."""
        measured = await self._measuring.newest_step()
        while True:
            is_complete = self._figures.stage == "complete"
            step = self._hall.contract.schedule.steps if is_complete else 0
            if measured is None or (is_complete and step > measured):
                copy = await self._hall.copies.take()
                measured = self._hall.contract.schedule.steps if copy.step else 0
                await self._measuring.measure_all(copy, measured)
                del copy  # with its file
            await self._hall.sealed.wait()
            self._hall.sealed.clear()

    async def _collect(self) -> None:
        """Record what the nodes measured of their own parameters."""
        while True:
            found = await self._by_nodes.get()
            await self._measuring.record(found.step, found.name, found.loss, found.measured_by, "single nodes: ")
            self._hall.measured_step = max(self._hall.measured_step, found.step)
