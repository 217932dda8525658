"""The `/metrics` endpoint: all counters, gauges and histograms in Prometheus's text format.

Two measurements are expensive: asking the kernel about every connection, and measuring the disks. Both run in threads,
within a CPU budget, and only when a client requests the metrics.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from prometheus_client import generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from thinwire_common.http import SAFETY
from thinwire_common.metrics import CONTENT_TYPE
from thinwire_coordinator.hall.capacity import Need
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.observe.cpu_budget import CpuBudget, KeptAnswers
from thinwire_coordinator.hall.observe.metrics import Counters, Gauges, Metrics
from thinwire_coordinator.hall.observe.readiness import Readiness
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.workers import Job, Workers
from thinwire_proto.errors import LedgerError

log = logging.getLogger("thinwire.coordinator")

Result = TypeVar("Result")

WIRE_EVERY_S = 1.0
DISKS_EVERY_S = 10.0


class Exposition:
    """Serves metrics from the start of the process. Call `begin` once the ledger is replayed, and `listening` once
    nodes can join."""

    def __init__(self, readiness: Readiness, workers: Workers) -> None:
        self.metrics = Metrics()
        self.route = Route("/metrics", self.answer)
        self._workers = workers
        self._kept = KeptAnswers(kept_s=0.0)
        self._counters = Counters(Counts(0))
        self._gauges = Gauges(readiness, workers)
        for collector in (self._counters, self._gauges):
            self.metrics.registry.register(collector)
        self._look_at_wire = CpuBudget(WIRE_EVERY_S)
        self._look_at_disks = CpuBudget(DISKS_EVERY_S)
        self._measuring: asyncio.Task[None] | None = None
        self._measure: Callable[[], list[Need]] | None = None

    def begin(
        self, run: Run, measure: Callable[[], list[Need]], needs: list[Need], losses: Mapping[str, tuple[int, float]]
    ) -> None:
        """Start to watch the swarm.

        measure: measures the disks, on a worker. needs: its latest result. losses: step and
        value of the newest loss on each held-out set.
        """
        self._measure = measure
        self._gauges.needs = needs
        self.metrics.begin(
            {name: loss for name, (_, loss) in losses.items()},
            lambda: run.view.held_out_sets,
            run.view.contract.model.context,
        )
        self._counters.counts = run.view.counts
        run.events.watchers.append(self.metrics.watch)

    def listening(self, port: int) -> None:
        """Nodes can join."""
        self._counters.counts.traffic.listening_at(port)

    async def answer(self, request: Request) -> Response:
        """All metrics now, or those of a moment ago if somebody asks without a pause."""
        await self.look()
        text = self._kept.answer("", time.monotonic(), lambda: generate_latest(self.metrics.registry))
        return Response(text, headers=SAFETY, media_type=CONTENT_TYPE)

    async def look(self) -> None:
        """Measure connections and disks, as far as their budgets allow."""
        now = time.monotonic()
        connections = self._counters.counts.traffic.connections
        if connections is not None and self._look_at_wire.due(now):
            cpu_s = 0.0
            try:
                _, cpu_s = await asyncio.to_thread(_timed, connections.look)
            finally:
                self._look_at_wire.took(now, cpu_s)
        if self._measure is not None and self._look_at_disks.due(now):
            # not awaited: the disk may be busy, and the previous measurement is good enough
            self._measuring = asyncio.create_task(self._measure_disks(self._measure, now))

    async def _measure_disks(self, measure: Callable[[], list[Need]], now: float) -> None:
        needs: list[Need] = []
        cpu_s = 0.0
        try:
            needs, cpu_s = await self._workers.submit(Job.MEASURE_DISKS, _timed, measure)
        except (OSError, LedgerError) as error:
            log.warning("cannot measure the disks: %s", error)
        finally:
            self._gauges.needs = needs
            self._look_at_disks.took(now, cpu_s)


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Run `work`; return its result and the processor time that this thread used for it, in seconds."""
    began = time.thread_time()
    return work(), time.thread_time() - began
