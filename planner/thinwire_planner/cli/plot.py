"""Draws the time of a step against the rate of the lines, for the best variant of each family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from thinwire_planner.choosing.plan import Plan
from thinwire_proto.errors import ConfigError, UsageError

DECADES = 2
"""To both sides of the rate of the setting."""
POINTS = 33
COLOURS = ("#1b6ca8", "#c8553d", "#4f8a3c", "#7a5ea8", "#555555")


def check_plot(path: Path) -> None:
    """Raises UsageError if matplotlib cannot write such a file there, and ConfigError if it is missing."""
    known = _pyplot().Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise UsageError(f"--plot: {path} must end in one of .{', .'.join(sorted(known))}")
    if not path.parent.is_dir():
        raise UsageError(f"--plot: there is no folder {path.parent}; create it, or choose another")


def draw(plan: Plan, path: Path) -> None:
    """Raises ConfigError if the file cannot be written."""
    pyplot = _pyplot()
    setting = plan.setting
    factors = np.logspace(-DECADES, DECADES, POINTS)
    rate = float(min(setting.network.up_bits_s.min(), setting.network.down_bits_s.min()))
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for number, one in enumerate(plan.families):
        times = [
            one.variant.forecast(setting.with_network(setting.network.scaled(rate=float(factor)))).seconds
            for factor in factors
        ]
        taken = one is plan.taken
        width, height = (3.0, 3) if taken else (1.5, 2)  # above the others, which may lie on the same line
        colour = COLOURS[number % len(COLOURS)]
        axes.loglog(factors * rate / 1e6, times, label=one.name, color=colour, linewidth=width, zorder=height)
    axes.axhline(setting.mean_s, color="black", linestyle="dotted", label="computing alone")
    axes.axvline(rate / 1e6, color="black", linewidth=0.5)
    axes.set_xlabel("rate of a host's line, Mbit/s")
    axes.set_ylabel("seconds a step")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot: {path} cannot be written: {error}") from None
    finally:
        pyplot.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib  # noqa: PLC0415 - only where a plot is asked for

        matplotlib.use("agg")
        from matplotlib import pyplot  # noqa: PLC0415
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'thinwire[bench]'") from None
    return pyplot
