"""Shows the rows as a table in the terminal, as JSON, and as tables of the pages."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.speed.row import BenchRow

TITLES = ("", "thinwire", "baseline", "", "times better", "target")
WIDTH = 150
BEGIN, END = "<!-- written by make bench -->", "<!-- to here -->"
JSON_NAME, PAGE_NAME = "performance.json", "performance.md"


def machine() -> dict[str, Any]:
    """The machine and software that the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu_name(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "an unnamed CPU"


def in_words(about: dict[str, Any]) -> str:
    return (
        f"{about['cores']} cores of {about['cpu']}, {about['system']}, Python {about['python']}, "
        f"torch {about['torch']}, {about['date']}"
    )


def cells(row: BenchRow) -> tuple[str, ...]:
    """The cells of a row, as in `TITLES`."""
    ours, baseline = f"{number(row.ours)} {row.unit}", f"{number(row.baseline)} {row.unit}"
    if row.wanted is None:
        wanted = ""
    else:
        sign, result = ("≤" if row.better == "less" else "≥"), ("met" if row.reached else "missed")
        wanted = f"{sign} {number(row.wanted)}, {result}"
    return row.what, ours, baseline, row.baseline_name, f"{number(row.ratio)}×", wanted


def number(value: float) -> str:
    """The value with three digits, or four if it is at least 1: 0.0405, 9.471, 1,235."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1 else f"{value:.3g}"


def print_table(rows: Iterable[BenchRow], about: dict[str, Any]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), title=in_words(about), title_justify="left")
    for title in TITLES:
        table.add_column(
            title, justify="right" if title in ("thinwire", "baseline", "times better") else "left", no_wrap=True
        )
    for topic, group in groupby(rows, key=lambda row: row.topic):
        table.add_row(f"[bold]{topic}[/bold]")
        for row in group:
            first, *others = cells(row)
            table.add_row(f"  {first}", *others)
    Console(width=WIDTH, highlight=False).print(table)


def write_json(rows: Sequence[BenchRow], about: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": about, "rows": [row.to_json() for row in rows]}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> tuple[list[BenchRow], dict[str, Any]]:
    document = json.loads(path.read_text())
    return [BenchRow.from_json(row) for row in document["rows"]], document["machine"]


def renewed(old: Sequence[BenchRow], new: Sequence[BenchRow]) -> list[BenchRow]:
    """Replace the rows of each topic that was measured anew. A topic that is new stands after the one that was measured
    before it."""
    fresh: dict[str, list[BenchRow]] = {}
    for row in new:
        fresh.setdefault(row.topic, []).append(row)
    groups = {topic: list(group) for topic, group in groupby(old, key=lambda row: row.topic)}
    order = list(groups)
    for number, topic in enumerate(fresh):
        if topic not in groups:
            before = list(fresh)[number - 1] if number else None
            order.insert(order.index(before) + 1 if before is not None else len(order), topic)
    return [row for topic in order for row in fresh.get(topic, groups.get(topic, []))]


def markdown(rows: Sequence[BenchRow], about: dict[str, Any]) -> str:
    """The text between the markers of the page."""
    lines = [BEGIN, "", f"On {in_words(about)}.", ""]
    for topic, group in groupby(rows, key=lambda row: row.topic):
        lines += [f"| {topic} | " + " | ".join(TITLES[1:]) + " |", "|---" * len(TITLES) + "|"]
        lines += ["| " + " | ".join(cells(row)) + " |" for row in group]
        lines += [""]
    return "\n".join([*lines, END])


def write_page(rows: Sequence[BenchRow], about: dict[str, Any], path: Path) -> None:
    """Replace the text between the markers of an existing page. Raises ValueError if the page has no markers."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path} has no markers for the table: {BEGIN} … {END}")
    path.write_text(before + markdown(rows, about) + after)
