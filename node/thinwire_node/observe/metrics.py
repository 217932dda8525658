"""The node's `/metrics`: the newest report in the Prometheus format. This module counts nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from thinwire_node.observe.definitions import METRICS, PHASE_SECONDS, SAMPLES, WATCHING_CPU_SECONDS
from thinwire_node.observe.reporter import Reporter
from thinwire_node.session.record import BOUNDS_S, Durations, Record

BOUNDS = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")


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
        return [of.family() for of in METRICS]

    def collect(self) -> Iterator[Metric]:
        report = self._reporter.report()
        for of in METRICS:
            metric = of.family()
            if isinstance(metric, HistogramMetricFamily):
                assert of is PHASE_SECONDS, "the values of another histogram are not known here"
                for phase, durations in self._record.phases.items():
                    metric.add_metric([phase], *_histogram(durations))
            elif of is WATCHING_CPU_SECONDS:
                metric.add_metric([], self._watching_s())
            else:
                for labels, value in SAMPLES[of](report).items():
                    if value is not None:
                        metric.add_metric(labels, value)
            yield metric


def _histogram(durations: Durations) -> tuple[list[tuple[str, float]], float]:
    """Cumulative buckets and the sum."""
    return list(zip(BOUNDS, map(float, accumulate(durations.counts)), strict=True)), durations.sum_s
