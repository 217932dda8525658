"""What a description is made of. Nothing here knows Grafana; `build` does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["lines", "stack", "number", "bars", "heatmap"]
Unit = Literal[
    "number",
    "tokens/s",
    "times/s",
    "bytes",
    "bytes/s",
    "bits",
    "bytes a parameter",
    "share",
    "seconds",
    "nats",
    "times",
]


@dataclass(frozen=True)
class Query:
    """expr: PromQL. legend: Grafana's, with {{label}}."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """kind: lines; stack (lines that add up); number (the newest value, large); bars (one for each series' newest
    value); heatmap (of a histogram's buckets). bad_from: the value from which on it is red; good below. width: of 24.
    """

    title: str
    about: str
    kind: Kind
    unit: Unit
    queries: tuple[Query, ...]
    width: int = 12
    bad_from: float | None = None
    log: bool = False
    decimals: int | None = None
    shows_legend: bool = False
    """A number's legend is its value: for a label that says it in words."""


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Choice:
    """A variable of a dashboard: what it is chosen from, and how its text and its value are found in that."""

    name: str
    label: str
    query: str
    regex: str


@dataclass(frozen=True)
class Dashboard:
    """uid: also the name of its file."""

    uid: str
    title: str
    about: str
    rows: tuple[Row, ...]
    choices: tuple[Choice, ...] = ()

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)
