"""Two plots: loss against tokens, and loss against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bench.convergence.report import ArmSummary

SIZE_IN = (10, 5)
DPI = 120
LINES = ("solid", "dashed", "dotted")
"""Styles in turn, because matplotlib has ten colours and there are more arms."""
MARKERS = "osD^v<>Pp*Xhd8H"
"""One for each arm."""
BESIDE = (1.01, 1.0)
"""The place of a legend: beside the curves, not over them."""


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
    axes.legend(loc="upper left", bbox_to_anchor=BESIDE, fontsize=8, title="arm and final loss", title_fontsize=8)
    return figure


def _front(summaries: Sequence[ArmSummary]) -> Figure:
    figure = Figure(SIZE_IN, dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for marker, arm in zip(MARKERS, dict.fromkeys(summary.arm for summary in summaries), strict=False):
        shown = [summary for summary in summaries if summary.arm == arm]
        at = [summary.bytes / 1e6 for summary in shown], [summary.loss for summary in shown]
        axes.scatter(*at, [12 * summary.nodes**0.5 for summary in shown], marker=marker, alpha=0.7, label=arm)
    axes.set_xscale("log")
    axes.set_xlabel("bytes of one node, sent and received, MB")
    axes.set_ylabel("held-out loss, nats a byte")
    axes.grid(alpha=0.3, which="both")
    axes.legend(loc="upper left", bbox_to_anchor=BESIDE, fontsize=8, title="larger: more nodes", title_fontsize=8)
    return figure
