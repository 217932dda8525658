"""Carries out what the organizer's commands have decided: bans, pardons, and a pause of the run.

The commands write to access.sqlite, whether or not the coordinator runs, so the coordinator polls it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from thinwire_coordinator.hall.access.pauses import Pauses
from thinwire_coordinator.hall.access.store import BanTable
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.workers import Job
from thinwire_proto.limits import ORDERS_READ_S


async def watch_orders(
    run: Run, bans: BanTable, pauses: Pauses, newest: int = 0, wall_clock: Callable[[], float] = time.time
) -> None:
    """Read the decisions every ORDERS_READ_S, until cancelled. The door refuses banned nodes that join meanwhile.

    If the organizer pardons a node, everything against it is forgotten. newest: the number of the newest decision.
    """
    while True:
        now = wall_clock()
        holding = await run.workers.once_unlocked(Job.READ_ORDERS, bans.holding, now)
        for node_id, ban in holding.items():
            run.expel(node_id, ban.denied(now))
        newest, pardoned = await run.workers.once_unlocked(Job.READ_ORDERS, bans.pardoned_since, newest)
        for node_id in pardoned:
            run.pardon(node_id)
        run.pause(await run.workers.once_unlocked(Job.READ_ORDERS, pauses.at, now))
        await asyncio.sleep(ORDERS_READ_S)
