"""Two plots: loss against tokens, and the Pareto front of loss against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bench.convergence.summaries import ArmSummary

SIZE_IN = (8, 5)
DPI = 120


def write_plots(summaries: Sequence[ArmSummary], nodes: int, curves: Path, front: Path) -> None:
    """Write both plots. nodes: the number of nodes in the first plot; the second has all numbers of nodes."""
    _curves([summary for summary in summaries if summary.nodes == nodes]).savefig(curves, dpi=DPI)
    _front(summaries).savefig(front, dpi=DPI)


def _curves(summaries: Sequence[ArmSummary]) -> Figure:
    figure = Figure(SIZE_IN, layout="constrained")
    axes = figure.subplots()
    for summary in sorted(summaries, key=lambda summary: summary.loss):
        tokens, losses = zip(*summary.results[0].curve, strict=True)
        axes.plot([count / 1e6 for count in tokens], losses, label=f"{summary.arm}  {summary.loss:.3f}", linewidth=1.4)
    lowest = min(summary.loss for summary in summaries)
    axes.set_ylim(lowest - 0.05, lowest + 1.0)
    axes.set_xlabel("tokens, millions")
    axes.set_ylabel("held-out loss, nats a byte")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, title="arm and final loss", title_fontsize=8)
    return figure


def _front(summaries: Sequence[ArmSummary]) -> Figure:
    figure = Figure(SIZE_IN, layout="constrained")
    axes = figure.subplots()
    for nodes, marker in zip(sorted({summary.nodes for summary in summaries}), "^os", strict=False):
        shown = [summary for summary in summaries if summary.nodes == nodes]
        axes.scatter(
            [summary.bytes / 1e6 for summary in shown],
            [summary.loss for summary in shown],
            marker=marker,
            label=f"{nodes} node{'s' if nodes > 1 else ''}",
        )
        for summary in shown:
            axes.annotate(
                summary.arm, (summary.bytes / 1e6, summary.loss), fontsize=7, xytext=(4, 3), textcoords="offset points"
            )
    axes.set_xscale("log")
    axes.margins(x=0.12)  # space for the last name
    axes.set_xlabel("bytes of one node, sent and received, MB")
    axes.set_ylabel("held-out loss, nats a byte")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    return figure
