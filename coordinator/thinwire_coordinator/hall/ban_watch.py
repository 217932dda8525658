"""Ends the sessions of banned nodes. The organizer's commands write bans to a file, so the coordinator polls it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from thinwire_coordinator.hall.access.door import Bans
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.workers import Job
from thinwire_proto.limits import BANS_READ_S


async def watch_bans(run: Run, bans: Bans, newest: int = 0, wall_clock: Callable[[], float] = time.time) -> None:
    """Read the bans every BANS_READ_S, until cancelled. The door refuses nodes that join meanwhile.

    If the organizer pardons a node, everything against it is forgotten. newest: the number of the newest decision.
    """
    while True:
        now = wall_clock()
        holding = await run.workers.once_unlocked(Job.READ_BANS, bans.holding, now)
        for node_id, ban in holding.items():
            run.expel(node_id, ban.denied(now))
        newest, pardoned = await run.workers.once_unlocked(Job.READ_BANS, bans.pardoned_since, newest)
        for node_id in pardoned:
            run.pardon(node_id)
        await asyncio.sleep(BANS_READ_S)
