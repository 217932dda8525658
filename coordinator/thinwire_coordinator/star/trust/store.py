"""Keeps the trust in nodes over restarts, and turns the coordinator's decisions into bans that the door enforces."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from thinwire_coordinator.hall.access.store import COORDINATOR, AccessStore
from thinwire_coordinator.hall.access.store import Decision as Recorded
from thinwire_coordinator.hall.events import Verdict
from thinwire_coordinator.hall.workers import Job, Workers
from thinwire_coordinator.star.trust.evidence import Decision
from thinwire_coordinator.star.trust.standing import Standing

log = logging.getLogger("thinwire.coordinator")


class AccessTrustStore:
    """Keeps standings and decisions on access.sqlite. `save` returns at once; a worker writes."""

    def __init__(self, access: AccessStore, workers: Workers, wall: Callable[[], float] = time.time) -> None:
        self._access = access
        self._workers = workers
        self._wall = wall

    def load(self) -> Iterable[Standing]:
        """All standings; one that cannot be read is left out."""
        for node, plain in self._access.standings.all().items():
            with suppress(TypeError, ValueError):
                yield Standing.from_plain(node, plain)

    def save(self, standings: Iterable[Standing], decisions: Iterable[Decision]) -> None:
        plain = {standing.node: standing.plain() for standing in standings}
        writing = self._workers.submit(Job.WRITE_TRUST, self._write, plain, tuple(decisions), self._wall())
        writing.add_done_callback(_look)

    def _write(self, standings: Mapping[str, Any], decisions: Sequence[Decision], now: float) -> None:
        self._access.standings.put(standings)
        for decision in decisions:
            if decision.verdict is Verdict.BANNED:
                self._access.bans.ban(decision.node, decision.until, decision.reason, COORDINATOR, now)
            else:
                what = decision.verdict.value
                self._access.bans.record(Recorded(now, decision.node, what, decision.reason, COORDINATOR))


def _look(writing: asyncio.Future[None]) -> None:
    """Log a failure: the run goes on without it, and the next round writes again."""
    if not writing.cancelled() and (error := writing.exception()) is not None:
        log.warning("cannot keep the trust in nodes: %s", error)
