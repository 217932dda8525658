"""The sink for OpenTelemetry: pushes all metrics of /metrics by OTLP over HTTP.

Headers, certificates and compression come from OpenTelemetry's own variables, OTEL_EXPORTER_OTLP_HEADERS and so on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from thinwire_coordinator.observe.sinks.otel_names import otel_name
from thinwire_proto.errors import ConfigError
from thinwire_proto.limits import OTLP_ANSWER_S

SERVICE = "thinwire-coordinator"
PATH = "/v1/metrics"
EVERY_S = 15.0
EVERY_VARIABLE = "OTEL_METRIC_EXPORT_INTERVAL"


@dataclass(frozen=True)
class Scrape:
    """All metrics at one time, as prometheus_client collects them. at_ns: Unix time."""

    at_ns: int
    families: Sequence[Metric]


class PushFailed(OSError):
    """The receiver did not accept a push."""


class Otlp:
    """Pushes scrapes to `url`. instance: names this coordinator among others. began_ns: when its counters began, as
    Unix time."""

    def __init__(self, url: str, instance: str, began_ns: int) -> None:
        self._url = url
        self._instance = instance
        self._began_ns = began_ns
        self._exporter: Any = None
        self._resource: Any = None
        self._said = _LastWords()

    def write(self, scrapes: Sequence[Scrape]) -> None:
        """Push the newest scrape; its sums contain the older ones. Raises PushFailed."""
        from opentelemetry.sdk.metrics.export import MetricExportResult  # noqa: PLC0415 - slow, and an extra

        if self._exporter is None:
            self._exporter = self._begin()
        self._said.text = ""
        if self._exporter.export(self._encoded(scrapes[-1])) is not MetricExportResult.SUCCESS:
            raise PushFailed(self._said.text or f"{self._url} did not accept the metrics")

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.shutdown()

    def _begin(self) -> Any:
        from opentelemetry.exporter.otlp.proto.http import metric_exporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415

        # the exporter only logs why it failed, at every attempt; the worker logs it once
        quiet = logging.getLogger(metric_exporter.__name__)
        quiet.propagate = False
        quiet.addHandler(self._said)
        self._resource = Resource.create(
            {"service.name": SERVICE, "service.version": version("thinwire"), "service.instance.id": self._instance}
        )
        return metric_exporter.OTLPMetricExporter(endpoint=self._url, timeout=OTLP_ANSWER_S)

    def _encoded(self, scrape: Scrape) -> Any:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics  # noqa: PLC0415
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

        found = [self._metric(family, scrape.at_ns) for family in scrape.families if family.samples]
        metrics = [metric for metric in found if metric is not None]
        scope = ScopeMetrics(InstrumentationScope("thinwire", version("thinwire")), metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])

    def _metric(self, family: Metric, at_ns: int) -> Any:
        """The metric as OpenTelemetry has it; None if it has no name there."""
        from opentelemetry.sdk.metrics import export  # noqa: PLC0415

        named = otel_name(family.name)
        if named is None:
            return None
        cumulative, began_ns = export.AggregationTemporality.CUMULATIVE, self._began_ns
        unknown: Any = None
        if family.type == "histogram":
            data: Any = export.Histogram(
                [
                    export.HistogramDataPoint(
                        attributes=labels, start_time_unix_nano=began_ns, time_unix_nano=at_ns, count=counts[-1],
                        sum=total, explicit_bounds=bounds, bucket_counts=_apart(counts),
                        min=unknown, max=unknown,
                    )
                    for labels, bounds, counts, total in _histograms(family.samples)
                ],
                cumulative,
            )  # fmt: skip
        else:
            is_sum = family.type == "counter"
            began = began_ns if is_sum else unknown
            points = [
                export.NumberDataPoint(sample.labels, began, at_ns, float(sample.value)) for sample in family.samples
            ]
            data = export.Sum(points, cumulative, is_monotonic=True) if is_sum else export.Gauge(points)
        name, unit = named
        return export.Metric(name, family.documentation, unit, data)


def _histograms(samples: Iterable[Sample]) -> list[tuple[Mapping[str, str], list[float], list[int], float]]:
    """Labels, upper bounds without infinity, cumulative counts with infinity's, and the sum, of each histogram."""
    found: dict[tuple[tuple[str, str], ...], tuple[dict[str, str], list[float], list[int], list[float]]] = {}
    for sample in samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        _, bounds, counts, total = found.setdefault(tuple(labels.items()), (labels, [], [], []))
        if sample.name.endswith("_bucket"):
            counts.append(int(sample.value))
            if sample.labels["le"] != "+Inf":
                bounds.append(float(sample.labels["le"]))
        elif sample.name.endswith("_sum"):
            total.append(sample.value)
    return [(labels, bounds, counts, total[0]) for labels, bounds, counts, total in found.values()]


def _apart(cumulative: Sequence[int]) -> list[int]:
    """The count of each bucket, from counts of it and all below."""
    return [later - earlier for earlier, later in pairwise([0, *cumulative])]


class _LastWords(logging.Handler):
    """Keeps the newest message."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


def endpoint_of(url: str) -> str:
    """The URL to push to; a URL without a path gets the standard one."""
    parts = urlsplit(url)
    return parts._replace(path=PATH).geturl() if parts.path in ("", "/") else url


def every_s() -> float:
    """Seconds between two pushes. Raises ConfigError."""
    text = os.environ.get(EVERY_VARIABLE, "")
    if not text:
        return EVERY_S
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{EVERY_VARIABLE} must be a number of milliseconds, not {text!r}")
    return int(text) / 1000
