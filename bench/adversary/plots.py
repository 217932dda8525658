"""The plot of the study: loss against tokens with a quarter hostile, one panel an attack."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.adversary.attacks import ATTACKS
from bench.adversary.run import SceneResult
from bench.adversary.scene import DEFENCES, Scene, Study

COLUMNS, PANEL_IN, DPI = 4, (3.4, 2.8), 110
ABOVE = 1.3
"""Nats above the lowest loss that are shown."""


def write_plot(study: Study, results: Mapping[str, SceneResult], path: Path) -> None:
    rows = -(-(len(ATTACKS) + 1) // COLUMNS)
    figure = Figure((COLUMNS * PANEL_IN[0], rows * PANEL_IN[1]), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, sharex=True, sharey=True).reshape(-1)
    lowest = min(result.loss for result in results.values())
    handles: dict[str, object] = {}
    for axes, attack in zip(panels, ATTACKS, strict=False):
        _panel(axes, study, results, attack)
        axes.set_title(attack, fontsize=9)
        axes.set_ylim(lowest - 0.1, lowest + ABOVE)
        axes.grid(alpha=0.3)
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    for axes in panels[len(ATTACKS) :]:
        axes.set_axis_off()
    panels[len(ATTACKS)].legend(handles.values(), handles.keys(), fontsize=8, loc="center")
    figure.supxlabel("tokens of honest nodes, millions", fontsize=9)
    figure.supylabel("held-out loss, nats a byte", fontsize=9)
    figure.savefig(path, dpi=DPI)


def _panel(axes: Axes, study: Study, results: Mapping[str, SceneResult], attack: str) -> None:
    hostile, seed = study.size.present // 4, study.seeds[0]
    for rule, trusting in DEFENCES:
        scene = Scene(rule, trusting, attack, hostile, seed, study.size)
        _line(axes, results.get(scene.name), scene.defence, "-")
    honest = Scene(*DEFENCES[0], attack, hostile, seed, study.size).baseline()
    _line(axes, results.get(honest.name), "honest nodes alone, vote", ":")


def _line(axes: Axes, result: SceneResult | None, label: str, style: str) -> None:
    tokens, losses = zip(*result.curve, strict=True) if result is not None else ((), ())
    colour = "black" if style == ":" else None
    axes.plot([count / 1e6 for count in tokens], losses, style, label=label, linewidth=1.3, color=colour)
