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
from bench.wide_area.predictions import from_page, section
from bench.wide_area.workload import MICRO_BATCH, NODES, PRESET, THREADS

CELLS, PAGE = "cells.json", "wan"
"""File of the figures; name of page and plot."""


class ReportError(Exception):
    """The cells of an earlier run cannot be on the page; the text says why."""


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


def earlier_cells(folder: Path, how: str) -> list[CellResult]:
    """The finished cells of a run that was stopped. Raises ReportError if there are none, or `how` was another."""
    path = folder / CELLS
    try:
        outcomes, _, measured = read_cells(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReportError(f"{path} holds no finished cells: {error}; give the folder of an earlier run") from error
    if measured != how:
        text = f"the cells in {path} were measured otherwise, so they cannot share a page"
        raise ReportError(f"{text}\nthere: {measured}\nnow: {how}")
    return outcomes


def page(outcomes: list[CellResult], skipped: list[SkippedCell], how: str, name: str = PAGE) -> str:
    """The page, in Markdown. name: of its plot."""
    before = [_head(how), _verdict(outcomes), "## Speed\n", _speed(outcomes, skipped)]
    after = ["## On the wire\n", _wire(outcomes), "## Time left for computing\n", _computing(outcomes)]
    if not outcomes:
        return "\n".join(before + after)
    # of the rounded figures on the page, so that `bench.wide_area.predictions` makes the same of it later
    predicted = section(from_page("\n".join(before + after)))
    return "\n".join([*before, f"![tokens per second in every cell]({name}.png)\n", predicted, *after])


def _head(how: str) -> str:
    return f"""# Over slow links

`make bench-wan` writes this page. {NODES} nodes of {THREADS} thread each, preset `{PRESET}`, micro-batches of
{MICRO_BATCH} samples. {how}

The baseline is PyTorch DistributedDataParallel over gloo with `no_sync`, on the same links and the same model, with as
many tokens per exchange.

| symbol | meaning |
| --- | --- |
| T | the time that the computing of a round takes without any exchange |
| X | the time that an all-reduce of all gradients in float32 takes |
| 1 + X/T | the largest gain that is possible |

Any two hosts are one round trip and one loss rate apart. The bandwidth is that of a node's own line, in each direction.

The nodes share the cores of this machine, so each node has a fraction of one. Where control groups allow it, a fifth
of the cores is kept for the coordinator and the line, which are not on a volunteer's machine. Nodes get the cores that
the page names by dilated time: links are slower and longer by the machine's clock, and rounds hold more samples, all by
the same factor. A node with two cores is therefore emulated as a machine that computes four times as fast as half a
core. Whether two threads would be that fast is not shown. TCP's own timers do not stretch, which favours dilated cells
with losses. Times and rates are by the clock of the emulated world.
"""


def _verdict(outcomes: list[CellResult]) -> str:
    deciding = [outcome for outcome in outcomes if outcome.decides]
    if not deciding:
        return f"No cell at 10 Mbit/s and 100 ms with X ≥ {X_OVER_T_WANTED:g}·T was measured.\n"
    titles = ["link", "X/T", "share of the possible gain", "share of wall time in forward and backward", "target"]
    rows = [
        [
            _name(outcome),
            f"{outcome.x_over_t:.1f}",
            f"{outcome.gain_share:.0%}",
            f"{outcome.swarm_compute_share:.0%}",
            "met" if outcome.reached else "missed",
        ]
        for outcome in deciding
    ]
    target = (
        f"Target, at 10 Mbit/s and 100 ms with X ≥ {X_OVER_T_WANTED:g}·T: at least {GAIN_SHARE_WANTED:.0%} of the "
        f"possible gain,\nand at least {COMPUTE_SHARE_WANTED:.0%} of the wall time that the cores leave in forward and "
        "backward.\n"
    )
    return f"{target}\n{_table(titles, rows)}"


def _speed(outcomes: list[CellResult], skipped: list[SkippedCell]) -> str:
    titles = ["link", "T, s", "X, s", "swarm, tokens/s", "DDP, tokens/s", "gain", "1 + X/T", "share"]
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
    titles = ["link", "system", "sent", "received", "sent per token", "tokens per node"]
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
    note = "Per node and exchange, as the kernel counted them, with IP headers, acknowledgements and repeats.\n"
    return f"{note}\n{_table(titles, rows)}"


def _computing(outcomes: list[CellResult]) -> str:
    titles = ["link", "control, tokens/s", "control", "swarm", "DDP", "swarm tokens / control tokens"]
    titles += ["swarm's speed / control's speed", "line's cores, swarm", "line's cores, DDP"]
    rows = [
        [
            _name(one),
            f"{one.control.tokens_s * one.dilation:,.0f}",
            *(f"{measured.compute_share:.0%}" for measured in (one.control, one.swarm, one.ddp)),
            f"{one.swarm.tokens_s / one.control.tokens_s:.0%}",
            f"{one.swarm.speed / one.control.speed:.0%}",
            *(f"{measured.line_cores:.2f}" for measured in (one.swarm, one.ddp)),
        ]
        for one in outcomes
    ]
    note = (
        "Share of wall time spent on forward and backward. The control is the same computing, side by side, without\n"
        "an exchange: the most that the cores allow. A line in Python takes its processor time from the nodes, where\n"
        "they have no quotas; netem's processor time is not visible. Speed is tokens in a second of forward and\n"
        "backward. A node's other threads take a little of it; the rest is what changed in the machine meanwhile.\n"
    )
    return f"{note}\n{_table(titles, rows)}"


def _table(titles: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (titles, ["---"] * len(titles), *rows)]
    return "\n".join(lines) + "\n"


def _name(outcome: CellResult) -> str:
    cores = outcome.cores_each
    return f"{_link(outcome.link)}, {cores:g} {'core' if cores <= 1 else 'cores'} per node"


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
    axes.set_xticks(positions, [_name(outcome).removesuffix(" per node").replace(", ", "\n") for outcome in outcomes])
    axes.set_xlabel("line of a node, its losses, and its cores")
    axes.set_ylabel("tokens per second, all nodes")
    axes.legend(loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.12), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def write_page(
    outcomes: list[CellResult], skipped: list[SkippedCell], how: str, folder: Path, name: str = PAGE
) -> None:
    """Write page and plot. name: of both, without an ending."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(page(outcomes, skipped, how, name))
    if outcomes:
        plot(outcomes, folder / f"{name}.png")


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.wide_area.report", description="Write page and plot again.")
    parser.add_argument("cells", type=Path, help="cells.json of a run")
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--page", default=PAGE, metavar="NAME", help="name of both files; default %(default)s")
    arguments = parser.parse_args()
    write_page(*read_cells(arguments.cells), arguments.into, arguments.page)


if __name__ == "__main__":
    main()
