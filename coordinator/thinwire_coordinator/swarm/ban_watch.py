"""Ends the sessions of banned nodes. The organizer's commands write bans to a file, so the coordinator polls it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from thinwire_coordinator.access.port import Bans
from thinwire_coordinator.swarm.swarm import Swarm
from thinwire_coordinator.swarm.workers import Job
from thinwire_proto.limits import BANS_READ_S


async def watch_bans(swarm: Swarm, bans: Bans, wall_clock: Callable[[], float] = time.time) -> None:
    """Read the bans every BANS_READ_S, until cancelled. The door refuses nodes that join meanwhile."""
    while True:
        now = wall_clock()
        holding = await swarm.workers.submit(Job.READ_BANS, bans.holding, now)
        for node_id, ban in holding.items():
            await swarm.expel(node_id, ban.denied(now))
        await asyncio.sleep(BANS_READ_S)
