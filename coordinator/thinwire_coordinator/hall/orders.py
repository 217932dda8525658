"""Carries out what the organizer's commands have decided: bans, pardons, a pause of the run, amendments.

The commands write to access.sqlite, whether or not the coordinator runs, so the coordinator polls it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from thinwire_common.logs import tell
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.workers import Job
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.limits import ORDERS_READ_S

log = logging.getLogger("thinwire.coordinator")


def tell_amended(amendment: Amendment, unit: str = "step") -> None:
    """Log an amendment that has come into force. unit: see `Kind.unit`."""
    step, words = amendment.step, amendment.in_words
    tell(log, logging.INFO, "coordinator.amended", f"amended from {unit} {step} on: {words}", step=step, reason=words)


def tell_refused(amendment: Amendment, why: str) -> None:
    log.error("the amendment %s is refused: %s", amendment.in_words, why)


async def watch_orders(
    run: Run, access: AccessStore, newest: int = 0, wall_clock: Callable[[], float] = time.time
) -> None:
    """Read the decisions every ORDERS_READ_S, until cancelled. The door refuses banned nodes that join meanwhile.

    If the organizer pardons a node, everything against it is forgotten. newest: the number of the newest decision.
    """
    read = run.workers.once_unlocked
    while True:
        now = wall_clock()
        holding = await read(Job.READ_ORDERS, access.bans.holding, now)
        for node_id, ban in holding.items():
            run.expel(node_id, ban.denied(now))
        newest, pardoned = await read(Job.READ_ORDERS, access.bans.pardoned_since, newest)
        for node_id in pardoned:
            run.pardon(node_id)
        run.pause(await read(Job.READ_ORDERS, access.pauses.at, now))
        refused = run.amend(await read(Job.READ_ORDERS, access.amendments.waiting))
        await read(Job.READ_ORDERS, access.amendments.refuse, refused)
        await asyncio.sleep(ORDERS_READ_S)
