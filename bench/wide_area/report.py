"""The figures as JSON, as a page with tables, and as a plot."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.wide_area.figures import COMPUTE_SHARE_WANTED, GAIN_SHARE_WANTED, X_OVER_T_WANTED, LeftOut, Measured, Outcome
from bench.wide_area.hosts import Link
from bench.wide_area.workload import MICRO_BATCH, NODES, PRESET, THREADS

CELLS, PAGE, PLOT = "cells.json", "wan.md", "wan.png"


def write_cells(outcomes: list[Outcome], left_out: list[LeftOut], how: str, folder: Path) -> None:
    """All that was measured. `how`: the machine and the way of emulating, in words."""
    document = {
        "how": how,
        "cells": [outcome.to_json() for outcome in outcomes],
        "left_out": [{"link": vars(cell.link), "reason": cell.reason} for cell in left_out],
    }
    (folder / CELLS).write_text(json.dumps(document, indent=1) + "\n")


def read_cells(path: Path) -> tuple[list[Outcome], list[LeftOut], str]:
    document = json.loads(path.read_text())
    outcomes = [Outcome.from_json(cell) for cell in document["cells"]]
    return outcomes, [LeftOut(Link(**cell["link"]), cell["reason"]) for cell in document["left_out"]], document["how"]


def page(outcomes: list[Outcome], left_out: list[LeftOut], how: str) -> str:
    """Markdown."""
    parts = [_head(how), _verdict(outcomes), "## Speed\n", _speed(outcomes, left_out)]
    if outcomes:
        parts += [f"![tokens a second in every cell]({PLOT})\n"]
    parts += ["## On the wire\n", _wire(outcomes), "## What the computing got\n", _computing(outcomes)]
    return "\n".join(parts)


def _head(how: str) -> str:
    return f"""# Over slow links

Written by `make bench-wan`: {NODES} nodes of {THREADS} thread, preset `{PRESET}`, micro-batches of {MICRO_BATCH}
samples. {how}

Beside the swarm: PyTorch DistributedDataParallel over gloo with `no_sync` on the same links and model, with as many
tokens an exchange. T is the time that the computing of a round takes where nothing is exchanged and X that of an
all-reduce of all gradients in float32, so 1 + X/T is the most that anybody can gain. Any two hosts are one round trip
and one loss apart; the rate is that of a node's own line, either way.

Nodes share these cores, so each is a machine of a part of one, which nobody has. Where a node has more, time is
dilated: links are slower and longer by the machine's clock, and rounds hold more samples, all by the same factor. So
a machine of two cores is one that computes four times as fast as one of half a core; that two threads would, is not
shown. Nor do TCP's own timers stretch, which favours dilated cells with losses. Times and rates are by the clock of
the emulated world.
"""


def _verdict(outcomes: list[Outcome]) -> str:
    deciding = [outcome for outcome in outcomes if outcome.decides]
    if not deciding:
        return f"No cell at 10 Mbit/s and 100 ms with X ≥ {X_OVER_T_WANTED:g}·T was measured.\n"
    lines = [
        f"* {_name(outcome)}, X/T {outcome.x_over_t:.1f}: **{outcome.gain_share:.0%}** of the most that can be "
        f"gained, forward and backward **{outcome.swarm_compute_share:.0%}** of the wall time that the cores leave: "
        f"{'reached' if outcome.reached else 'not reached'}."
        for outcome in deciding
    ]
    wanted = (
        f"To be reached at 10 Mbit/s and 100 ms with X ≥ {X_OVER_T_WANTED:g}·T: at least {GAIN_SHARE_WANTED:.0%} of "
        f"the gain, and forward and backward at least {COMPUTE_SHARE_WANTED:.0%}:\n"
    )
    return "\n".join([wanted, *lines, ""])


def _speed(outcomes: list[Outcome], left_out: list[LeftOut]) -> str:
    titles = ["link", "T, s", "X, s", "swarm, tokens/s", "DDP, tokens/s", "gain", "1 + X/T", "of the most"]
    rows = [
        [
            _name(one),
            f"{one.compute_round_s / one.dilation:.2f}",
            f"{one.dense_exchange_s / one.dilation:.2f}",
            f"{one.swarm.tokens_s * one.dilation:,.0f}",
            f"{one.dense.tokens_s * one.dilation:,.0f}",
            f"{one.gain:.1f}×",
            f"{one.gain_most:.1f}×",
            f"{one.gain_share:.0%}",
        ]
        for one in outcomes
    ]
    return _table(titles, rows) + "".join(f"\n* {_link(cell.link)}: {cell.reason}\n" for cell in left_out)


def _wire(outcomes: list[Outcome]) -> str:
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
        for system, measured in (("swarm", outcome.swarm), ("DDP", outcome.dense))
    ]
    said = "A node and exchange, as the kernel counted on its device: IP headers, acknowledgements and repeats too.\n"
    return f"{said}\n{_table(titles, rows)}"


def _computing(outcomes: list[Outcome]) -> str:
    titles = ["link", "control, tokens/s", "control", "swarm", "DDP", "swarm, of the control's tokens"]
    titles += ["line's cores, swarm", "line's cores, DDP"]
    rows = [
        [
            _name(one),
            f"{one.control.tokens_s * one.dilation:,.0f}",
            *(f"{measured.compute_share:.0%}" for measured in (one.control, one.swarm, one.dense)),
            f"{one.swarm.tokens_s / one.control.tokens_s:.0%}",
            *(f"{measured.line_cores:.2f}" for measured in (one.swarm, one.dense)),
        ]
        for one in outcomes
    ]
    said = (
        "Share of wall time spent on forward and backward. The control is the same computing side by side without an\n"
        "exchange: what the cores leave. The line in Python takes its processor time from the nodes on these cores;\n"
        "netem's does not show.\n"
    )
    return f"{said}\n{_table(titles, rows)}"


def _table(titles: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (titles, ["---"] * len(titles), *rows)]
    return "\n".join(lines) + "\n"


def _name(outcome: Outcome) -> str:
    cores = outcome.cores_each
    return f"{_link(outcome.link)}, {cores:g} {'core' if cores <= 1 else 'cores'} a node"


def _link(link: Link) -> str:
    return f"{link.rate_mbit:g} Mbit/s, {link.round_trip_ms:g} ms, {100 * link.loss:g}%"


def plot(outcomes: list[Outcome], path: Path) -> None:
    """Tokens a second: bars for both systems, and a mark for what the control reaches."""
    import matplotlib  # noqa: PLC0415 - installed by `make bench-wan` alone

    matplotlib.use("agg")
    from matplotlib import pyplot  # noqa: PLC0415

    def rates(name: str) -> list[float]:
        measured: list[Measured] = [getattr(outcome, name) for outcome in outcomes]
        return [one.tokens_s * outcome.dilation for one, outcome in zip(measured, outcomes, strict=True)]

    figure, axes = pyplot.subplots(figsize=(1.5 + 1.3 * max(3, len(outcomes)), 4.5), layout="constrained")
    places = list(range(len(outcomes)))
    bars = axes.bar([place - 0.2 for place in places], rates("swarm"), 0.38, label="thinwire", color="#1b6ca8")
    axes.bar([place + 0.2 for place in places], rates("dense"), 0.38, label="DDP over gloo", color="#c8553d")
    axes.hlines(
        rates("control"),
        [place - 0.42 for place in places],
        [place + 0.42 for place in places],
        colors="black",
        linestyles="dotted",
        label="computing alone",
    )
    axes.bar_label(bars, [f"{outcome.gain:.1f}×" for outcome in outcomes], label_type="center", color="white")
    axes.set_xticks(places, [_name(outcome).replace(", ", "\n") for outcome in outcomes])
    axes.set_ylabel("tokens a second, all nodes")
    axes.legend(loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.12), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def write_page(outcomes: list[Outcome], left_out: list[LeftOut], how: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page(outcomes, left_out, how))
    if outcomes:
        plot(outcomes, folder / PLOT)


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.wide_area.report", description="Write page and plot anew.")
    parser.add_argument("cells", type=Path, help="cells.json of a run")
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER")
    arguments = parser.parse_args()
    write_page(*read_cells(arguments.cells), arguments.into)


if __name__ == "__main__":
    main()
