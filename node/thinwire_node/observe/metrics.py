"""The node's `/metrics`: the newest report in the Prometheus format. This module counts nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from thinwire_common.metrics import Definition
from thinwire_common.traffic import KINDS
from thinwire_node.observe import definitions, gossip_metrics
from thinwire_node.observe.report import STATES, Report
from thinwire_node.observe.reporter import Reporter
from thinwire_node.session.record import BOUNDS_S, Durations, Record

BOUNDS = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")

ALL = (*definitions.METRICS, *gossip_metrics.METRICS)

Value = float | None
Samples = dict[tuple[str, ...], Value]
"""Values by label values. None: no sample."""


class NodeMetrics(Collector):
    """Collects the metrics of one node. `watching_s`: returns the CPU time of all observation."""

    def __init__(self, reporter: Reporter, record: Record, watching_s: Callable[[], float]) -> None:
        self._reporter = reporter
        self._record = record
        self._watching_s = watching_s
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """The body of `/metrics`."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """All metrics without samples. The registry calls this once, before there is a report."""
        return [of.family() for of in ALL]

    def collect(self) -> Iterator[Metric]:
        report = self._reporter.report()
        values = samples(report, self._watching_s())
        for of in ALL:
            metric = of.family()
            if isinstance(metric, HistogramMetricFamily):
                for phase, durations in self._record.phases.items():
                    metric.add_metric([phase], *_histogram(durations))
            else:
                for labels, value in values[of].items():
                    if value is not None:
                        metric.add_metric(labels, value)
            yield metric


def _histogram(durations: Durations) -> tuple[list[tuple[str, float]], float]:
    """Cumulative buckets and the sum."""
    return list(zip(BOUNDS, map(float, accumulate(durations.counts)), strict=True)), durations.sum_s


def samples(report: Report, watching_s: float) -> dict[Definition, Samples]:
    """The values of all metrics except histograms."""
    values: dict[Definition, Samples] = {of: {(): value} for of, value in _plain(report, watching_s).items()}
    return values | _labelled(report) | gossip_metrics.samples(report.peers)


def _plain(report: Report, watching_s: float) -> dict[Definition, Value]:
    position, given, clock = report.place, report.given, report.clock
    step, head_step = position.step, position.head_step
    behind = None if step is None or head_step is None else max(0, head_step - step)
    return {
        definitions.ROUND_LENGTH_SECONDS: position.round_length_s,
        definitions.ROUND_LEFT_SECONDS: position.round_left_s,
        definitions.STEP: step,
        definitions.STEPS_BEHIND: behind,
        definitions.TOKENS: given.tokens,
        definitions.LOSS: given.loss,
        definitions.LEASE_SAMPLES: position.lease_samples,
        definitions.MICRO_BATCH_SAMPLES: given.micro_batch_samples,
        definitions.COMPONENT_BYTES: given.component_bits / 8 if given.component_bits is not None else None,
        definitions.FINGERPRINT_MISMATCHES: given.mismatches,
        definitions.UPLOAD_SLACK_SECONDS: given.slack_s,
        definitions.CLOCK_ERROR_SECONDS: clock.error_s,
        definitions.UPLOAD_BYTES_PER_SECOND: report.bytes.upload_s,
        definitions.WATCHING_CPU_SECONDS: watching_s,
    }


def _labelled(report: Report) -> dict[Definition, Samples]:
    passed, device, given = report.bytes, report.device, report.given
    return {
        definitions.INFO: {(report.name, device.name, report.version): 1},
        definitions.STATE: {(state,): float(state == report.state) for state in STATES},
        definitions.CONTRIBUTIONS: {(outcome,): count for outcome, count in given.outcomes.items()},
        definitions.DROPPED: {
            ("micro_batches",): given.micro_batches_dropped,
            ("gradients",): given.gradients_dropped,
            ("samples",): given.samples_skipped,
            ("shards",): given.shards_skipped,
            ("replicas",): given.resyncs,
            ("sessions",): given.sessions_lost,
        },
        definitions.PAYLOAD_BYTES: _by_kind(passed.sent, passed.received),
        definitions.WIRE_BYTES: {("sent",): passed.wire_sent, ("received",): passed.wire_received},
        definitions.DEVICE_MEMORY_BYTES: {("used",): device.memory_bytes, ("total",): device.memory_limit_bytes},
        definitions.QUEUE_DEPTH: {("compute",): device.jobs, ("deliver",): device.to_deliver},
    }


def _by_kind(sent: dict[str, int], received: dict[str, int]) -> Samples:
    """Counts for all kinds, including those without messages: a series that starts above 0 hides its first increase."""
    return {
        (direction, kind): counts.get(kind, 0)
        for direction, counts in (("sent", sent), ("received", received))
        for kind in KINDS
    }
