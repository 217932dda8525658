"""Prometheus metrics of how it is now: read from the registry, on the event loop, when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from thinwire_common.traffic import Traffic
from thinwire_coordinator.ledger.disk_forecast import Need
from thinwire_coordinator.observe.definitions import family
from thinwire_coordinator.observe.metrics import Metrics
from thinwire_coordinator.swarm.view import SwarmView
from thinwire_coordinator.swarm.workers import Workers
from thinwire_coordinator.web.server import Readiness

STATES = ("starting", "waiting", "training", "complete", "failed")
PLACES = ("state", "bodies")
"""The disks that `sizes` measures, in its order."""
CONTRACT_DIGITS = 16
VERSION = version("thinwire")  # once: it is looked up on the disk


class Gauges(Collector):
    """needs: of each disk, as last measured."""

    def __init__(self, readiness: Readiness, workers: Workers, traffic: Traffic, metrics: Metrics) -> None:
        self._readiness = readiness
        self._workers = workers
        self._traffic = traffic
        self._metrics = metrics
        self.needs: list[Need] = []

    def collect(self) -> Iterable[Metric]:
        swarm = self._readiness.swarm
        yield _one("ready", self._readiness.ready)
        yield _each("state", dict.fromkeys(STATES, 0) | {self._state(): 1})
        yield _each("queue_depth", self._workers.depths())
        yield from self._bytes()
        for name, values in (
            ("disk_free_bytes", [need.free_bytes for need in self.needs]),
            ("disk_needed_bytes", [max(0, need.total_bytes - need.there_bytes) for need in self.needs]),
        ):
            yield _each(name, dict(zip(PLACES, values, strict=False)))
        if swarm is not None:
            yield from _of_swarm(swarm)

    def _state(self) -> str:
        if self._readiness.swarm is None:
            return "starting"
        return "failed" if self._readiness.failed else self._readiness.swarm.stage

    def _bytes(self) -> Iterable[Metric]:
        sent, received = self._traffic.sent, self._traffic.received
        payload_bytes, messages = _counter("payload_bytes_total"), _counter("messages_total")
        for direction, payload in (("sent", sent), ("received", received)):
            for kind, count in payload.bytes.items():
                payload_bytes.add_metric((direction, kind), count)
            for kind, count in payload.messages.items():
                messages.add_metric((direction, kind), count)
        yield payload_bytes
        yield messages
        in_rounds = received.bytes["contribution"] + sent.bytes["update"]
        if in_rounds:
            yield _one("compression_ratio", 2 * self._metrics.dense_bytes / in_rounds)
        connections = self._traffic.connections
        if connections is not None and connections.can_look:
            wire = _counter("wire_bytes_total")
            wire.add_metric(("sent",), connections.wire.sent)
            wire.add_metric(("received",), connections.wire.received)
            yield wire
            yield _one("connections", len(connections))


def _of_swarm(swarm: SwarmView) -> Iterable[Metric]:
    contract = swarm.contract
    info = GaugeMetricFamily(*_heading("info"))
    info.add_metric((VERSION, contract.hash.hex()[:CONTRACT_DIGITS], contract.round.pace), 1)
    yield info
    yield _one("term", swarm.term.number)
    yield _one("parameters", swarm.layout.parameters)
    yield _one("round", swarm.round_number)
    yield _one("round_length_seconds", contract.round.length_s)
    yield _one("step", swarm.step)
    yield _one("steps", swarm.steps)
    active = swarm.active
    yield _each("nodes", {"active": active, "away": len(swarm.members) - active})
    failures = _counter("watcher_failures_total")
    failures.add_metric((), swarm.watcher_failures)
    yield failures


def _heading(name: str) -> tuple[str, str, None, tuple[str, ...]]:
    """Name, help, value and labels, as metric families of prometheus_client take them."""
    of = family(name)
    return of.name, of.help, None, of.labels


def _counter(name: str) -> CounterMetricFamily:
    return CounterMetricFamily(*_heading(name))


def _one(name: str, value: float) -> Metric:
    gauge = GaugeMetricFamily(*_heading(name))
    gauge.add_metric((), value)
    return gauge


def _each(name: str, values: Mapping[str, float]) -> Metric:
    """One value for each value of its only label."""
    gauge = GaugeMetricFamily(*_heading(name))
    for label, value in values.items():
        gauge.add_metric((label,), value)
    return gauge
