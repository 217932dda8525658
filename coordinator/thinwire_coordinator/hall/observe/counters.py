"""Counters for Prometheus, read from a swarm's counts at scrape time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from thinwire_common.metrics import Definition
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.observe import definitions


class Counters(Collector):
    """Exports a swarm's counts. `counts` is empty until `Exposition.begin` replaces it with the swarm's."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    def collect(self) -> Iterable[Metric]:
        counts = self.counts
        refused = {reason.value: count for reason, count in counts.not_counted.items()}
        yield _each(definitions.ROUNDS_SEALED, counts.rounds_sealed)
        yield _each(definitions.ROUNDS_VOID, counts.rounds_void)
        yield _each(definitions.CONTRIBUTIONS, {"counted": counts.counted} | refused)
        compared = {"equal": counts.fingerprints_equal, "different": counts.fingerprints_different}
        yield _each(definitions.FINGERPRINTS_COMPARED, compared)
        yield _one(definitions.TOKENS, counts.tokens)
        yield _one(definitions.SAMPLES_SKIPPED, counts.samples_skipped)
        yield _one(definitions.VOTES, counts.votes)
        yield _one(definitions.VOTES_BYTES, counts.votes_bytes)
        yield _one(definitions.UPDATE_COMPONENTS, counts.update_components)
        yield _one(definitions.UPDATE_BODY_BYTES, counts.update_bytes)
        yield _each(definitions.UPDATES, counts.updates)
        yield _one(definitions.DENSE_ALLREDUCE_BYTES, counts.dense_bytes)
        yield _one(definitions.NODES_CAME, counts.came)
        yield _each(definitions.CALLS_REFUSED, {reason.value: count for reason, count in counts.calls_refused.items()})
        yield _each(definitions.JOINS_REFUSED, {reason.value: count for reason, count in counts.refused.items()})
        yield _each(definitions.TRUST_DECISIONS, {verdict.value: count for verdict, count in counts.judged.items()})
        yield _each(definitions.NODES_WENT, {"left": counts.left, "lost": counts.lost})
        yield _each(definitions.FETCHES, counts.fetches)
        yield _each(definitions.EVALUATION_PARTS, counts.evaluation_parts)
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
        in_rounds = self.counts.bytes_up + self.counts.bytes_down
        if in_rounds:
            ratio = definitions.COMPRESSION_RATIO.gauge()
            ratio.add_metric((), 2 * self.counts.dense_bytes / in_rounds)
            yield ratio
        connections = traffic.connections
        if connections is not None and connections.can_look:
            wire = definitions.WIRE_BYTES.counter()
            wire.add_metric(("sent",), connections.wire.sent)
            wire.add_metric(("received",), connections.wire.received)
            yield wire
            open_now = definitions.CONNECTIONS.gauge()
            open_now.add_metric((), len(connections))
            yield open_now


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
