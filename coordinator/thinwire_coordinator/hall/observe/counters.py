"""Counters for Prometheus, read from a swarm's counts at scrape time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from thinwire_common.metrics import Definition
from thinwire_coordinator.hall.access.refusals import DoorReason
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.observe import definitions, star_metrics


class Counters(Collector):
    """Exports a swarm's counts. `counts` is empty until `Exposition.begin` replaces it with the swarm's."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    def collect(self) -> Iterable[Metric]:
        counts = self.counts
        refused = {reason.value: count for reason, count in counts.not_counted.items()}
        ended = {"sealed": counts.rounds_sealed, "void": counts.rounds_void}
        yield _pairs(star_metrics.ROUNDS, ended, ("everybody", "time"))
        yield _each(star_metrics.CONTRIBUTIONS, {"counted": counts.counted} | refused)
        compared = {"equal": counts.fingerprints_equal, "different": counts.fingerprints_different}
        yield _each(star_metrics.FINGERPRINTS_COMPARED, compared)
        yield _one(definitions.TOKENS, counts.tokens)
        yield _one(definitions.SAMPLES_SKIPPED, counts.samples_skipped)
        yield _each(star_metrics.COMPONENTS, {"up": counts.votes, "down": counts.update_components})
        yield _each(star_metrics.COMPONENT_BYTES, {"up": counts.votes_bytes, "down": counts.update_bytes})
        yield _one(star_metrics.DENSE_ALLREDUCE_BYTES, counts.dense_bytes)
        yield _each(definitions.CHANGES, {"came": counts.came, "left": counts.left, "lost": counts.lost})
        by_door = {"call": counts.calls_refused, "join": counts.refused}
        yield _pairs(definitions.REFUSED, by_door, tuple(DoorReason))
        yield _each(definitions.TRUST_DECISIONS, {verdict.value: count for verdict, count in counts.judged.items()})
        yield _each(star_metrics.EVALUATION_PARTS, counts.evaluation_parts)
        yield from self._bytes()

    def _bytes(self) -> Iterable[Metric]:
        traffic = self.counts.traffic
        payload_bytes, messages = definitions.PAYLOAD_BYTES.counter(), definitions.MESSAGES.counter()
        for direction, payload in (("sent", traffic.sent), ("received", traffic.received)):
            for kind, count in payload.bytes.items():
                payload_bytes.add_metric((direction, kind), count)
            for kind, count in payload.messages.items():
                messages.add_metric((direction, kind), count)
        yield payload_bytes
        yield messages
        connections = traffic.connections
        if connections is not None and connections.can_look:
            wire = definitions.WIRE_BYTES.counter()
            wire.add_metric(("sent",), connections.wire.sent)
            wire.add_metric(("received",), connections.wire.received)
            yield wire


def _one(of: Definition, value: float) -> Metric:
    counter = of.counter()
    counter.add_metric((), value)
    return counter


def _each(of: Definition, values: Mapping[str, float]) -> Metric:
    """One value for each value of the metric's only label. Label values known in advance start at 0."""
    counter = of.counter()
    for label, value in (dict.fromkeys(of.values, 0) | dict(values)).items():
        counter.add_metric((label,), value)
    return counter


def _pairs(of: Definition, counts: Mapping[str, Mapping[Any, float]], reasons: tuple[Any, ...]) -> Metric:
    """One value for each pair of the metric's two labels, from 0. reasons: values of the second label."""
    counter = of.counter()
    for first, by_reason in counts.items():
        for reason in reasons:
            counter.add_metric((first, getattr(reason, "value", reason)), by_reason.get(reason, 0))
    return counter
