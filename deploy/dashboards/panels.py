"""The elements of a dashboard's description. This module is independent of Grafana; `build` translates it."""

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
    """expr: PromQL. legend: in Grafana's syntax, with {{label}}."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel.

    kind: lines; stack (lines that add up); number (the newest value in large type); bars (one for the newest value of
    each series); heatmap (of a histogram's buckets). bad_from: values from here on are red, others green. width: in
    24ths of the page.
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
    """Show the legend instead of the number, for a label that is the value."""


@dataclass(frozen=True)
class PanelRow:
    """A titled row of panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A variable of a dashboard: the query for its options, and the regular expression for their text and value."""

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
    rows: tuple[PanelRow, ...]
    variables: tuple[Variable, ...] = ()

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)
