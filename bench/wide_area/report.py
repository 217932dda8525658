"""Writes the figures as a page with tables."""

from __future__ import annotations

from pathlib import Path

from bench.markdown import table
from bench.wide_area.figures import (
    COMPUTE_SHARE_WANTED,
    GAIN_SHARE_WANTED,
    X_OVER_T_WANTED,
    CellResult,
    SkippedCell,
)
from bench.wide_area.hosts import LinkSpec
from bench.wide_area.predictions import from_page, section
from bench.wide_area.workload import MICRO_BATCH, NODES, PRESET, THREADS

PAGE = "wan"
"""The name of the page."""


def page(outcomes: list[CellResult], skipped: list[SkippedCell], how: str) -> str:
    """The page, in Markdown."""
    before = [_head(how), _verdict(outcomes), "## Speed\n", _speed(outcomes, skipped)]
    after = ["## On the wire\n", _wire(outcomes), "## Time left for computing\n", _computing(outcomes)]
    if not outcomes:
        return "\n".join(before + after)
    # of the rounded figures on the page, so that `bench.wide_area.predictions` makes the same of it later
    predicted = section(from_page("\n".join(before + after)))
    return "\n".join([*before, predicted, *after])


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
    return f"{target}\n{table(titles, rows)}"


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
    return table(titles, rows) + "".join(f"\n* {_link(cell.link)}: {cell.reason}\n" for cell in skipped)


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
    return f"{note}\n{table(titles, rows)}"


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
        "an exchange: the most that the cores allow. The line in Python takes its processor time from the nodes,\n"
        "where they have no quotas. Speed is tokens in a second of forward and backward. A node's other threads take\n"
        "a little of it; the rest is what changed in the machine meanwhile.\n"
    )
    return f"{note}\n{table(titles, rows)}"


def _name(outcome: CellResult) -> str:
    cores = outcome.cores_each
    return f"{_link(outcome.link)}, {cores:g} {'core' if cores <= 1 else 'cores'} per node"


def _link(link: LinkSpec) -> str:
    return f"{link.rate_mbit:g} Mbit/s, {link.round_trip_ms:g} ms, {100 * link.loss:g}%"


def write_page(outcomes: list[CellResult], skipped: list[SkippedCell], how: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(outcomes, skipped, how))
