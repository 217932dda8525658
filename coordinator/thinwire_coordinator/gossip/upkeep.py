"""Upkeep of a gossip run: records what nodes measure, and measures the first state and the mean."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire_coordinator.gossip.figures import GossipFigures
from thinwire_coordinator.hall.measurement import SetMeasured
from thinwire_coordinator.hall.run import Upkeep


@dataclass
class GossipUpkeep(Upkeep):
    """by_nodes: what nodes measured on the way."""

    figures: GossipFigures
    by_nodes: asyncio.Queue[SetMeasured]

    async def works(self) -> Sequence[Coroutine[Any, Any, None]]:
        return self._follow(), self._collect()

    async def _follow(self) -> None:
        """Measure the loss of the first state, and of the mean once it is sealed."""
        measured = await self.measuring.newest_step()
        while True:
            is_complete = self.figures.stage == "complete"
            step = self.hall.contract.schedule.steps if is_complete else 0
            if measured is None or (is_complete and step > measured):
                copy = await self.hall.copies.take()
                measured = self.hall.contract.schedule.steps if copy.step else 0
                await self.measuring.measure_all(copy, measured)
                del copy  # with its file
            await self.hall.sealed.wait()
            self.hall.sealed.clear()

    async def _collect(self) -> None:
        while True:
            found = await self.by_nodes.get()
            await self.measuring.record(found.step, found.name, found.loss, found.measured_by, "single nodes: ")
            self.hall.measured_step = max(self.hall.measured_step, found.step)
