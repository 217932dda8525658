"""Two plots: loss against tokens, and loss against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from bench.convergence.summaries import ArmSummary

SIZE_IN = (10, 5)
DPI = 120
LINES = ("solid", "dashed", "dotted")
"""Styles in turn, because matplotlib has ten colours and there are more arms."""
LABEL_POINTS = 7
LETTER_WIDTH = 0.52
"""Of a letter, as a share of its height, as far as labels must keep apart."""
MARKER_POINTS = 6
PLACES = ((5, 2, False), (-5, 2, True), (5, -8, False), (-5, -8, True), (5, 10, False), (5, -16, False))
"""Where a label may stand beside its point, in points, and whether it ends there: the first place that is free."""


def write_plots(summaries: Sequence[ArmSummary], nodes: int, curves: Path, front: Path) -> None:
    """Write both plots. nodes: the number of nodes in the first plot; the second has all numbers of nodes."""
    _curves([summary for summary in summaries if summary.nodes == nodes]).savefig(curves)
    _front(summaries).savefig(front)


def _curves(summaries: Sequence[ArmSummary]) -> Figure:
    figure = Figure(SIZE_IN, dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for number, summary in enumerate(sorted(summaries, key=lambda summary: summary.loss)):
        tokens, losses = zip(*summary.results[0].curve, strict=True)
        (line,) = axes.plot([count / 1e6 for count in tokens], losses, label=f"{summary.arm}  {summary.loss:.3f}")
        line.set(color=f"C{number % 10}", linestyle=LINES[number // 10 % len(LINES)], linewidth=1.4)
    lowest = min(summary.loss for summary in summaries)
    axes.set_ylim(lowest - 0.05, lowest + 1.0)
    axes.set_xlabel("tokens, millions")
    axes.set_ylabel("held-out loss, nats a byte")
    axes.grid(alpha=0.3)
    beside = (1.01, 1.0)  # the curves, not over them
    axes.legend(loc="upper left", bbox_to_anchor=beside, fontsize=8, title="arm and final loss", title_fontsize=8)
    return figure


def _front(summaries: Sequence[ArmSummary]) -> Figure:
    figure = Figure(SIZE_IN, dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for nodes, marker in zip(sorted({summary.nodes for summary in summaries}), "^os", strict=False):
        shown = [summary for summary in summaries if summary.nodes == nodes]
        axes.scatter(
            [summary.bytes / 1e6 for summary in shown],
            [summary.loss for summary in shown],
            marker=marker,
            label=f"{nodes} node{'s' if nodes > 1 else ''}",
        )
    axes.set_xscale("log")
    axes.margins(x=0.12)  # space for the last name
    axes.set_xlabel("bytes of one node, sent and received, MB")
    axes.set_ylabel("held-out loss, nats a byte")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    figure.draw_without_rendering()
    _label(axes, [(summary.arm, summary.bytes / 1e6, summary.loss) for summary in summaries])
    return figure


def _label(axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Write the name of each point beside it, where no other name and no point is. points: name, x, y.

    The axes must be laid out: their limits may not change afterwards."""
    scale = DPI / 72  # pixels of a point
    at = {point: axes.transData.transform(point[1:]) for point in points}
    marker = MARKER_POINTS * scale
    taken = [Bbox.from_bounds(x - marker / 2, y - marker / 2, marker, marker) for x, y in at.values()]
    for point in sorted(points, key=lambda point: -point[2]):
        name, (x, y) = point[0], at[point]
        width, height = LETTER_WIDTH * LABEL_POINTS * len(name) * scale, LABEL_POINTS * scale
        boxes = []
        for right, up, ends in PLACES:
            left = x + right * scale - width * ends
            boxes.append(Bbox.from_bounds(left, y + up * scale, width, height))
        free = [number for number, box in enumerate(boxes) if not any(box.overlaps(other) for other in taken)]
        number = free[0] if free else 0
        taken.append(boxes[number])
        right, up, ends = PLACES[number]
        place = "right" if ends else "left"
        axes.annotate(name, point[1:], (right, up), textcoords="offset points", ha=place, fontsize=LABEL_POINTS)
