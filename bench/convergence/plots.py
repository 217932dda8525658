"""Two pictures: loss against tokens, and the front of loss against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bench.convergence.lines import Line

SIZE_IN = (8, 5)
DPI = 120


def write_plots(lines: Sequence[Line], nodes: int, curves: Path, front: Path) -> None:
    """`nodes`: whose curves are drawn; the front has every number of nodes."""
    _curves([line for line in lines if line.nodes == nodes]).savefig(curves, dpi=DPI)
    _front(lines).savefig(front, dpi=DPI)


def _curves(lines: Sequence[Line]) -> Figure:
    figure = Figure(SIZE_IN, layout="constrained")
    axes = figure.subplots()
    for line in sorted(lines, key=lambda line: line.loss):
        tokens, losses = zip(*line.results[0].curve, strict=True)
        axes.plot([count / 1e6 for count in tokens], losses, label=f"{line.arm}  {line.loss:.3f}", linewidth=1.4)
    lowest = min(line.loss for line in lines)
    axes.set_ylim(lowest - 0.05, lowest + 1.0)
    axes.set_xlabel("tokens, millions")
    axes.set_ylabel("held-out loss, nats a byte")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, title="arm, and its last loss", title_fontsize=8)
    return figure


def _front(lines: Sequence[Line]) -> Figure:
    figure = Figure(SIZE_IN, layout="constrained")
    axes = figure.subplots()
    for nodes, marker in zip(sorted({line.nodes for line in lines}), "^os", strict=False):
        mine = [line for line in lines if line.nodes == nodes]
        axes.scatter(
            [line.bytes / 1e6 for line in mine],
            [line.loss for line in mine],
            marker=marker,
            label=f"{nodes} node{'s' if nodes > 1 else ''}",
        )
        for line in mine:
            axes.annotate(
                line.arm, (line.bytes / 1e6, line.loss), fontsize=7, xytext=(4, 3), textcoords="offset points"
            )
    axes.set_xscale("log")
    axes.margins(x=0.12)  # room for the last name
    axes.set_xlabel("bytes of one node, sent and received, MB")
    axes.set_ylabel("held-out loss, nats a byte")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    return figure
