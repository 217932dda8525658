"""Prometheus's text format, written as fast as Python goes.

prometheus_client's own writer checks and escapes every name and label of every sample anew, which takes 3 ms of a
scrape of 280 lines: more than everything else about it. Names and labels of a series never change, so here they are
written once and kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Writer:
    """Keeps as many heads of lines as there are series, which is bounded: no label grows with the swarm."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}

    def write(self, metrics: Iterable[Metric]) -> str:
        lines: list[str] = []
        for metric in metrics:
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            lines.append(f"# HELP {name} {_escaped(metric.documentation)}\n# TYPE {name} {metric.type}\n")
            for sample in metric.samples:
                labels = tuple(sample.labels.items())
                head = self._heads.get((sample.name, labels))
                if head is None:
                    head = self._heads[sample.name, labels] = _head(sample.name, labels)
                lines.append(f"{head}{_number(sample.value)}\n")
        return "".join(lines)


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _head(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    inside = ",".join(f'{label}="{_quoted(value)}"' for label, value in labels)
    return f"{name}{{{inside}}} " if inside else f"{name} "


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
