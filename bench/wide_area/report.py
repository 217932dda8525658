"""Writes the figures as JSON, as a page with tables, and as a plot."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.wide_area.figures import (
    COMPUTE_SHARE_WANTED,
    GAIN_SHARE_WANTED,
    X_OVER_T_WANTED,
    CellResult,
    SkippedCell,
    SystemFigures,
)
from bench.wide_area.hosts import LinkSpec
from bench.wide_area.workload import MICRO_BATCH, NODES, PRESET, THREADS

CELLS, PAGE, PLOT = "cells.json", "wan.md", "wan.png"


def write_cells(outcomes: list[CellResult], skipped: list[SkippedCell], how: str, folder: Path) -> None:
    """Write all measurements. how: the machine and the kind of emulation, in words."""
    document = {
        "how": how,
        "cells": [outcome.to_json() for outcome in outcomes],
        "skipped": [{"link": vars(cell.link), "reason": cell.reason} for cell in skipped],
    }
    (folder / CELLS).write_text(json.dumps(document, indent=1) + "\n")


def read_cells(path: Path) -> tuple[list[CellResult], list[SkippedCell], str]:
    document = json.loads(path.read_text())
    outcomes = [CellResult.from_json(cell) for cell in document["cells"]]
    return (
        outcomes,
        [SkippedCell(LinkSpec(**cell["link"]), cell["reason"]) for cell in document["skipped"]],
        document["how"],
    )


def page(outcomes: list[CellResult], skipped: list[SkippedCell], how: str) -> str:
    """The page, in Markdown."""
    parts = [_head(how), _verdict(outcomes), "## Speed\n", _speed(outcomes, skipped)]
    if outcomes:
        parts += [f"![tokens a second in every cell]({PLOT})\n"]
    parts += ["## On the wire\n", _wire(outcomes), "## What the computing got\n", _computing(outcomes)]
    return "\n".join(parts)


def _head(how: str) -> str:
    return f"""# Over slow links

Written by `make bench-wan`: {NODES} nodes of {THREADS} thread, preset `{PRESET}`, micro-batches of {MICRO_BATCH}
samples. {how}

The baseline is PyTorch DistributedDataParallel over gloo with `no_sync`, on the same links and model, with equal
tokens per exchange. T is the time of a round's computation without an exchange, and X the time of an all-reduce of all
gradients in float32. So 1 + X/T is the largest possible gain. Any two hosts are one round trip and one loss apart. The
rate is that of a node's own line, in each direction.

The nodes share the cores of one machine, so each node has a fraction of a core, which no real node has. Cells in which
a node has more cores use dilated time: by the machine's clock, links are slower and longer, and rounds have more
samples, all by the same factor. So a node with two cores computes four times as fast as a node with half a core; this
assumes that two threads really compute twice as fast. TCP's own timers do not stretch, which favours dilated cells
with losses. Times and rates use the clock of the emulated world.
"""


def _verdict(outcomes: list[CellResult]) -> str:
    deciding = [outcome for outcome in outcomes if outcome.decides]
    if not deciding:
        return f"No cell at 10 Mbit/s and 100 ms with X ≥ {X_OVER_T_WANTED:g}·T was measured.\n"
    lines = [
        f"* {_name(outcome)}, X/T {outcome.x_over_t:.1f}: **{outcome.gain_share:.0%}** of the largest possible gain, "
        f"and **{outcome.swarm_compute_share:.0%}** of the available wall time in forward and backward passes: "
        f"{'reached' if outcome.reached else 'not reached'}."
        for outcome in deciding
    ]
    wanted = (
        f"The goal at 10 Mbit/s and 100 ms with X ≥ {X_OVER_T_WANTED:g}·T is at least {GAIN_SHARE_WANTED:.0%} of the "
        f"gain, and at least {COMPUTE_SHARE_WANTED:.0%} of the wall time in forward and backward passes:\n"
    )
    return "\n".join([wanted, *lines, ""])


def _speed(outcomes: list[CellResult], skipped: list[SkippedCell]) -> str:
    titles = ["link", "T, s", "X, s", "swarm, tokens/s", "DDP, tokens/s", "gain", "1 + X/T", "of the most"]
    rows = [
        [
            _name(one),
            f"{one.compute_round_s / one.dilation:.2f}",
            f"{one.ddp_exchange_s / one.dilation:.2f}",
            f"{one.swarm.tokens_s * one.dilation:,.0f}",
            f"{one.ddp.tokens_s * one.dilation:,.0f}",
            f"{one.gain:.1f}×",
            f"{one.gain_max:.1f}×",
            f"{one.gain_share:.0%}",
        ]
        for one in outcomes
    ]
    return _table(titles, rows) + "".join(f"\n* {_link(cell.link)}: {cell.reason}\n" for cell in skipped)


def _wire(outcomes: list[CellResult]) -> str:
    titles = ["link", "system", "sent", "received", "sent a token", "tokens each"]
    rows = [
        [
            _name(outcome),
            system,
            *(f"{value:,.0f} B" for value in measured.bytes_each()),
            f"{measured.sent_bytes / measured.tokens:,.1f} B",
            f"{measured.tokens_each:,.0f}",
        ]
        for outcome in outcomes
        for system, measured in (("swarm", outcome.swarm), ("DDP", outcome.ddp))
    ]
    note = (
        "Bytes of one node in one exchange, counted by the kernel on its device. IP headers, acknowledgements and\n"
        "retransmissions are included.\n"
    )
    return f"{note}\n{_table(titles, rows)}"


def _computing(outcomes: list[CellResult]) -> str:
    titles = ["link", "control, tokens/s", "control", "swarm", "DDP", "swarm, of the control's tokens"]
    titles += ["line's cores, swarm", "line's cores, DDP"]
    rows = [
        [
            _name(one),
            f"{one.control.tokens_s * one.dilation:,.0f}",
            *(f"{measured.compute_share:.0%}" for measured in (one.control, one.swarm, one.ddp)),
            f"{one.swarm.tokens_s / one.control.tokens_s:.0%}",
            *(f"{measured.line_cores:.2f}" for measured in (one.swarm, one.ddp)),
        ]
        for one in outcomes
    ]
    note = (
        "Share of wall time spent on forward and backward passes. The control is the same computation on all nodes at\n"
        "once without an exchange, which is what the cores allow. A line emulated in Python takes processor time from\n"
        "the nodes on these cores; the processor time of netem is not visible.\n"
    )
    return f"{note}\n{_table(titles, rows)}"


def _table(titles: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (titles, ["---"] * len(titles), *rows)]
    return "\n".join(lines) + "\n"


def _name(outcome: CellResult) -> str:
    cores = outcome.cores_each
    return f"{_link(outcome.link)}, {cores:g} {'core' if cores <= 1 else 'cores'} a node"


def _link(link: LinkSpec) -> str:
    return f"{link.rate_mbit:g} Mbit/s, {link.round_trip_ms:g} ms, {100 * link.loss:g}%"


def plot(outcomes: list[CellResult], path: Path) -> None:
    """Plot tokens a second: bars for both systems, and a line for the control."""
    import matplotlib  # noqa: PLC0415 - installed only by `make bench-wan`

    matplotlib.use("agg")
    from matplotlib import pyplot  # noqa: PLC0415

    def rates(name: str) -> list[float]:
        measured: list[SystemFigures] = [getattr(outcome, name) for outcome in outcomes]
        return [one.tokens_s * outcome.dilation for one, outcome in zip(measured, outcomes, strict=True)]

    figure, axes = pyplot.subplots(figsize=(1.5 + 1.3 * max(3, len(outcomes)), 4.5), layout="constrained")
    positions = list(range(len(outcomes)))
    bars = axes.bar([position - 0.2 for position in positions], rates("swarm"), 0.38, label="thinwire", color="#1b6ca8")
    axes.bar([position + 0.2 for position in positions], rates("ddp"), 0.38, label="DDP over gloo", color="#c8553d")
    axes.hlines(
        rates("control"),
        [position - 0.42 for position in positions],
        [position + 0.42 for position in positions],
        colors="black",
        linestyles="dotted",
        label="computing alone",
    )
    axes.bar_label(bars, [f"{outcome.gain:.1f}×" for outcome in outcomes], label_type="center", color="white")
    axes.set_xticks(positions, [_name(outcome).replace(", ", "\n") for outcome in outcomes])
    axes.set_ylabel("tokens a second, all nodes")
    axes.legend(loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.12), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def write_page(outcomes: list[CellResult], skipped: list[SkippedCell], how: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page(outcomes, skipped, how))
    if outcomes:
        plot(outcomes, folder / PLOT)


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.wide_area.report", description="Write page and plot again.")
    parser.add_argument("cells", type=Path, help="cells.json of a run")
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER")
    arguments = parser.parse_args()
    write_page(*read_cells(arguments.cells), arguments.into)


if __name__ == "__main__":
    main()
