"""What a metric is: its name, kind, labels and help text.

A package defines its metrics once, as constants of a module, and uses these constants wherever it sets or shows a
value. docs/metrics.md is made from the same constants.
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
    """name: as Prometheus shows it, without the _bucket, _sum and _count of a histogram. values: of the only label, to
    be shown with a 0 from the start: Prometheus misses the first increase of a series that begins above 0."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    values: tuple[str, ...] = ()

    def counter(self) -> CounterMetricFamily:
        """Without samples yet, like the next two."""
        return CounterMetricFamily(self.name, self.help, labels=self.labels)

    def gauge(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self.name, self.help, labels=self.labels)

    def histogram(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self.name, self.help, labels=self.labels)

    def family(self) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
        if self.kind == "counter":
            return self.counter()
        return self.gauge() if self.kind == "gauge" else self.histogram()


class Definitions:
    """All metrics of a package, in the order in which they are defined. Each name begins with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
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
        whole = self._prefix + name
        if whole in self._all:
            raise ValueError(f"{whole} is defined twice")
        defined = self._all[whole] = Definition(whole, kind, labels, help_text, values)
        return defined
