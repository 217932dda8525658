"""Plots the rows: bits of a component, bytes of a round, and how many times better each other row is than its baseline.

A row that was also measured beside busy processes has one bar, with a mark for the busy machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.speed.neighbours import BUSY
from bench.speed.report import number
from bench.speed.row import BITS, BenchRow

SYSTEMS = ("templar", "Psyche")
"""Other systems that are shown. The reference's 96 bits would compress the rest of the scale."""
RATIO_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1_000, 10_000)
WIDTH_IN, CURVES_IN, LINE_IN = 12.0, 3.6, 0.2
"""In inches: of the figure; height of the curves, and of a line of the ratios."""


def plot(rows: Sequence[BenchRow], path: Path) -> None:
    """Write the plot. Panels without rows stay empty."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - installed only by `make bench`

    path.parent.mkdir(parents=True, exist_ok=True)
    bits = [row for row in rows if row.topic == BITS]
    curves = [row for row in rows if row.series and row.topic != BITS]
    lines = _lines([row for row in rows if row.topic != BITS and not row.series])
    ratios_in = LINE_IN * (len(lines) + 4)
    figure = Figure((WIDTH_IN, CURVES_IN + ratios_in), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(CURVES_IN, ratios_in))
    if bits:
        _bits(figure.add_subplot(grid[0, 0]), bits)
    if curves:
        _bytes(figure.add_subplot(grid[0, 1]), curves)
    if lines:
        _ratios(figure.add_subplot(grid[1, :]), lines)
    figure.savefig(path, dpi=100)


def _bits(axes: Any, rows: Sequence[BenchRow]) -> None:
    curve = [row for row in rows if row.series]
    axes.plot([row.x for row in curve], [row.ours for row in curve], "o-", label="thinwire, whole message")
    axes.plot([row.x for row in curve], [row.baseline for row in curve], "k:", label="entropy floor")
    for row in rows:
        if row.baseline_name in SYSTEMS:
            axes.axhline(row.baseline, color="gray", linewidth=0.8)
            axes.annotate(row.baseline_name, (curve[-1].x, row.baseline), ha="right", va="bottom", fontsize=8)
    axes.set_ylim(0, 22)
    axes.set(xscale="log", xlabel="k, components selected per tile", ylabel="bits per component")
    _ticks(axes.xaxis, [row.x for row in curve])
    axes.legend(fontsize=8, loc="lower left")
    axes.grid(alpha=0.3)


def _bytes(axes: Any, rows: Sequence[BenchRow]) -> None:
    for series, group in groupby(rows, key=lambda row: row.series):
        curve = list(group)
        axes.plot([row.x for row in curve], [row.ours for row in curve], "o-", label=series.partition(", ")[2])
    ring = {row.x: row.baseline for row in rows if row.baseline}
    axes.plot(list(ring), list(ring.values()), "k:", label=rows[0].baseline_name)
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="bytes per parameter and round, up and down")
    _ticks(axes.xaxis, sorted({row.x for row in rows if row.x is not None}))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


Line = tuple[str, BenchRow | None, BenchRow | None]
"""A label, its row, and the same beside busy processes. The title of a topic has neither."""


def _lines(rows: Sequence[BenchRow]) -> list[Line]:
    """One line for each row, under the title of its topic."""
    busy = {(row.topic, row.what, row.baseline_name): row for row in rows}
    found: list[Line] = []
    for topic, group in groupby((row for row in rows if not row.topic.endswith(BUSY)), key=lambda row: row.topic):
        found.append((topic, None, None))
        for row in group:
            label = f"{row.what}   vs. {row.baseline_name}".replace("`", "")
            found.append((label, row, busy.get((f"{topic}, {BUSY}", row.what, row.baseline_name))))
    return found


def _ratios(axes: Any, lines: Sequence[Line]) -> None:
    labels = axes.set_yticks(range(len(lines)), [label for label, *_ in lines], fontsize=8)
    ratios = [1.0]
    for position, (_, row, busy) in enumerate(lines):
        if row is None:
            labels[position].label1.set_fontweight("bold")
            continue
        # bars start at 1: to the right if better than the baseline, to the left if worse
        axes.barh(position, row.ratio - 1, left=1, color="tab:blue" if row.ratio >= 1 else "tab:orange")
        end, text = max(row.ratio, 1), f"{number(row.ratio)}×"
        ratios.append(row.ratio)
        if busy is not None:
            axes.plot(busy.ratio, position, "|", color="black", markersize=9, markeredgewidth=2)
            end, text = max(end, busy.ratio), f"{text}, busy {number(busy.ratio)}×"
            ratios.append(busy.ratio)
        axes.annotate(f"  {text}", (end, position), va="center", fontsize=8)
    axes.set(xscale="log", xlabel=f"times better than the baseline; the mark: {BUSY}")
    axes.set_ylim(len(lines) - 0.5, -0.5)
    _ticks(axes.xaxis, [tick for tick in RATIO_TICKS if min(ratios) / 2 <= tick <= max(ratios)])
    axes.set_xlim(min(ratios) / 1.5, max(ratios) * 20)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    axes.grid(alpha=0.3, axis="x")


def _ticks(axis: Any, values: Iterable[float | None]) -> None:
    """Show only these ticks, as plain numbers."""
    positions = [value for value in values if value is not None]
    axis.set_ticks(positions, [f"{position:g}" for position in positions])
    axis.set_ticks([], minor=True)
