"""Definitions of metrics: name, kind, labels and help text.

A package defines its metrics once, as constants of a module, and uses these constants wherever it sets or shows a
value. docs/metrics.md is generated from the same constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, eq=False)
class Definition:
    """The definition of one metric.

    name: as Prometheus shows it, without the suffixes _bucket, _sum and _count of a histogram. values: values of the
    only label to export as 0 from the start, because Prometheus misses the first increase of a series that begins above
    0.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    values: tuple[str, ...] = ()

    def family(self) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
        """A family without samples."""
        if self.kind == "counter":
            return CounterMetricFamily(self.name, self.help, labels=self.labels)
        if self.kind == "gauge":
            return GaugeMetricFamily(self.name, self.help, labels=self.labels)
        return HistogramMetricFamily(self.name, self.help, labels=self.labels)


class Definitions:
    """All metrics of a package, in order of definition. Each name begins with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._all: dict[str, Definition] = {}

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._all.values())

    def counter(self, name: str, help_text: str, *labels: str, values: tuple[str, ...] = ()) -> Definition:
        return self._define(name, "counter", help_text, labels, values)

    def gauge(self, name: str, help_text: str, *labels: str) -> Definition:
        return self._define(name, "gauge", help_text, labels, ())

    def histogram(self, name: str, help_text: str, *labels: str, values: tuple[str, ...] = ()) -> Definition:
        return self._define(name, "histogram", help_text, labels, values)

    def _define(
        self, name: str, kind: Kind, help_text: str, labels: tuple[str, ...], values: tuple[str, ...]
    ) -> Definition:
        whole = self.prefix + name
        if whole in self._all:
            raise ValueError(f"{whole} is defined twice")
        defined = self._all[whole] = Definition(whole, kind, labels, help_text, values)
        return defined
