"""Writes the names of nodes to the ledger, so that nodes that have left are still thanked by name in a model card."""

from __future__ import annotations

import asyncio

from thinwire_coordinator.hall.events import Event, NodeCame
from thinwire_coordinator.hall.observe.history import NAMES_MAX
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.workers import Job

NAMES_EVERY_S = 1.0


class NodeNames:
    """Watches a swarm for names. Writes all of NAMES_EVERY_S at once, because a thousand nodes may rejoin together."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[str, str] = {}
        self._new: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        run.events.watchers.append(self._watch)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, event: Event) -> None:
        if not isinstance(event, NodeCame):
            return
        member = self._run.view.members.get(event.node_id)
        if member is None or self._known.get(event.node_id) == member.name:
            return
        self._known[event.node_id] = self._new[event.node_id] = member.name
        if len(self._known) > NAMES_MAX:
            del self._known[next(iter(self._known))]
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(NAMES_EVERY_S, self._write)

    def _write(self) -> None:
        names, self._new, self._timer = self._new, {}, None
        record = self._run.state.upkeep_ledger.record_names
        work = self._run.workers.once_unlocked(Job.WRITE_NAMES, record, names)
        self._run.events.keep("writing the names of nodes", work)
