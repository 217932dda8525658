"""Gauges, computed at scrape time on the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import version

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from thinwire_common.metrics import Definition
from thinwire_coordinator.hall.ledger.disk_forecast import Need
from thinwire_coordinator.hall.observe import definitions, star_metrics
from thinwire_coordinator.hall.observe.readiness import Readiness
from thinwire_coordinator.hall.view import RunView
from thinwire_coordinator.hall.workers import Workers

STATES = ("starting", "waiting", "paused", "training", "complete", "failed")
PLACES = ("state", "bodies")
"""Labels of the disks, in the order in which `disk_forecast.measure` returns them."""
CONTRACT_DIGITS = 16
VERSION = version("thinwire")  # read once, because the lookup reads the disk


class Gauges(Collector):
    """Exports the current state of the coordinator. `needs` holds the latest measurement of each disk."""

    def __init__(self, readiness: Readiness, workers: Workers) -> None:
        self._readiness = readiness
        self._workers = workers
        self.needs: list[Need] = []

    def collect(self) -> Iterable[Metric]:
        swarm = self._readiness.swarm
        yield each(definitions.STATE, dict.fromkeys(STATES, 0) | {self._state(): 1})
        yield each(definitions.QUEUE_DEPTH, self._workers.depths())
        for of, values in (
            (definitions.DISK_FREE_BYTES, [need.free_bytes for need in self.needs]),
            (definitions.DISK_NEEDED_BYTES, [max(0, need.total_bytes - need.there_bytes) for need in self.needs]),
        ):
            yield each(of, dict(zip(PLACES, values, strict=False)))
        if swarm is not None:
            yield from _of_swarm(swarm)

    def _state(self) -> str:
        if self._readiness.swarm is None:
            return "starting"
        return "failed" if self._readiness.failed else self._readiness.swarm.stage


def _of_swarm(swarm: RunView) -> Iterable[Metric]:
    contract = swarm.contract
    info = definitions.INFO.gauge()
    info.add_metric((VERSION, contract.hash.hex()[:CONTRACT_DIGITS], contract.round.pace), 1)
    yield info
    yield one(definitions.PARAMETERS, swarm.layout.parameters)
    yield one(star_metrics.ROUND, swarm.round_number)
    yield one(star_metrics.ROUND_LENGTH_SECONDS, contract.round.length_s)
    yield one(definitions.STEP, swarm.step)
    yield one(definitions.STEPS, swarm.steps)
    active = swarm.active
    yield each(definitions.NODES, {"active": active, "away": len(swarm.members) - active})
    failures = definitions.WATCHER_FAILURES.counter()
    failures.add_metric((), swarm.watcher_failures)
    yield failures
    yield from swarm.own_metrics()


def one(of: Definition, value: float) -> Metric:
    """The value of a metric without labels."""
    gauge = of.gauge()
    gauge.add_metric((), value)
    return gauge


def each(of: Definition, values: Mapping[str, float]) -> Metric:
    """One value for each value of the metric's only label."""
    gauge = of.gauge()
    for label, value in values.items():
        gauge.add_metric((label,), value)
    return gauge
