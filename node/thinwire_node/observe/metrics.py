"""`/metrics` of a node: the newest report in Prometheus' words. Nothing is counted here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from thinwire_common.traffic import KINDS
from thinwire_node.exchange.coordinator.record import BOUNDS_S, Durations, Record
from thinwire_node.observe.definitions import FAMILIES, Family
from thinwire_node.observe.report import STATES, Report
from thinwire_node.observe.reporter import Reporter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")

Value = float | None
Samples = dict[tuple[str, ...], Value]
"""By the values of the labels; what is None is not shown."""


class NodeMetrics(Collector):
    """`watching_s`: tells the CPU time that all watching has taken."""

    def __init__(self, reporter: Reporter, record: Record, watching_s: Callable[[], float]) -> None:
        self._reporter = reporter
        self._record = record
        self._watching_s = watching_s
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """What may be collected; asked for once, at registration, when there is nothing to report yet."""
        return [_family(family) for family in FAMILIES]

    def collect(self) -> Iterator[Metric]:
        report = self._reporter.report()
        values = samples(report, self._watching_s())
        for family in FAMILIES:
            metric = _family(family)
            if isinstance(metric, HistogramMetricFamily):
                for phase, durations in self._record.phases.items():
                    metric.add_metric([phase], *_histogram(durations))
            else:
                for labels, value in values[family.name].items():
                    if value is not None:
                        metric.add_metric(labels, value)
            yield metric


def _family(family: Family) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    if family.kind == "counter":
        return CounterMetricFamily(family.name, family.help, labels=family.labels)
    if family.kind == "gauge":
        return GaugeMetricFamily(family.name, family.help, labels=family.labels)
    return HistogramMetricFamily(family.name, family.help, labels=family.labels)


def _histogram(durations: Durations) -> tuple[list[tuple[str, float]], float]:
    """Buckets that hold all below them too, and the sum."""
    return list(zip(BOUNDS, map(float, accumulate(durations.counts)), strict=True)), durations.sum_s


def samples(report: Report, watching_s: float) -> dict[str, Samples]:
    """The values of all families but histograms, by name."""
    values: dict[str, Samples] = {
        f"thinwire_node_{name}": {(): value} for name, value in _plain(report, watching_s).items()
    }
    return values | {f"thinwire_node_{name}": found for name, found in _labelled(report).items()}


def _plain(report: Report, watching_s: float) -> dict[str, Value]:
    place, given, clock = report.place, report.given, report.clock
    behind = None if place.step is None or place.head_step is None else max(0, place.head_step - place.step)
    return {
        "sessions_total": given.sessions,
        "sessions_lost_total": given.sessions_lost,
        "round": place.round,
        "round_length_seconds": place.round_length_s,
        "round_left_seconds": place.round_left_s,
        "step": place.step,
        "steps": place.steps,
        "steps_behind": behind,
        "parameters": place.parameters,
        "tokens_total": given.tokens,
        "samples_total": given.samples,
        "loss": given.loss,
        "lease_samples": place.lease_samples,
        "micro_batch_samples": given.micro_batch_samples,
        "micro_batches_dropped_total": given.micro_batches_dropped,
        "gradients_dropped_total": given.gradients_dropped,
        "components": given.components,
        "components_per_tile": place.k,
        "component_bytes": given.component_bits / 8 if given.component_bits is not None else None,
        "fingerprint_mismatches_total": given.mismatches,
        "resyncs_total": given.resyncs,
        "upload_slack_seconds": given.slack_s,
        "clock_offset_seconds": clock.offset_s,
        "clock_error_seconds": clock.error_s,
        "clock_jumps_total": clock.jumps,
        "upload_bytes_per_second": report.bytes.upload_s,
        "device_memory_bytes": report.device.memory_bytes,
        "device_memory_limit_bytes": report.device.memory_limit_bytes,
        "watching_cpu_seconds_total": watching_s,
    }


def _labelled(report: Report) -> dict[str, Samples]:
    passed, device = report.bytes, report.device
    return {
        "info": {(report.name, device.name, report.version): 1},
        "state": {(state,): float(state == report.state) for state in STATES},
        "contributions_total": {(outcome,): count for outcome, count in report.given.outcomes.items()},
        "payload_bytes_total": _by_kind(passed.sent, passed.received),
        "messages_total": _by_kind(passed.sent_messages, passed.received_messages),
        "wire_bytes_total": {("sent",): passed.wire_sent, ("received",): passed.wire_received},
        "queue_depth": {("compute",): device.jobs, ("deliver",): device.to_deliver},
    }


def _by_kind(sent: dict[str, int], received: dict[str, int]) -> Samples:
    """All kinds, the unheard-of ones too: a series that begins above 0 hides its first increase."""
    return {
        (direction, kind): counts.get(kind, 0)
        for direction, counts in (("sent", sent), ("received", received))
        for kind in KINDS
    }
