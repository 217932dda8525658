"""Compares what the planner predicts with measured cells: `python -m bench.wide_area.predictions docs/wan.md`

A cell gives the planner its link, the number of nodes, T as the compute time of a step without spread, and the cores of
a node, by which the planner's rates of a node's own arithmetic are multiplied. It predicts X, the step of DDP and the
round of the star with base age 1. Times are by the clock of the emulated world.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.markdown import table
from bench.wide_area.hosts import LinkSpec
from bench.wide_area.workload import MICRO_BATCH, NODES, PRESET, SAMPLES
from thinwire_planner.cli.plan_file import sizes_of
from thinwire_planner.methods.all_reduce import exchange_s
from thinwire_planner.methods.method import Rates, Setting, all_variants
from thinwire_planner.timing.compute import ComputeTimes
from thinwire_planner.timing.network import Network

WITHIN = 0.15
"""Largest relative error that counts as predicted."""
COORDINATOR_BITS_S = 1e10
"""The coordinator's line has no limit in these cells."""
TITLE = "## Beside the planner\n"
NEXT = "## On the wire\n"
"""The section that follows on the page."""
LINK = r"\| (?P<mbit>[\d.]+) Mbit/s, (?P<rtt>[\d.]+) ms, (?P<lost>[\d.]+)%, (?P<cores>[\d.]+) cores? per node "
SPEED_ROW = re.compile(
    rf"^{LINK}\| (?P<t>[\d.]+) \| (?P<x>[\d.]+) \| (?P<swarm>[\d,]+) \| (?P<ddp>[\d,]+) \|", re.MULTILINE
)
TOKENS_ROW = re.compile(rf"^{LINK}\| (?P<system>swarm|DDP) \|.*\| (?P<tokens>[\d,]+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class MeasuredCell:
    """Seconds and tokens of one cell. compute_s: T, for DDP's tokens of a step."""

    link: LinkSpec
    cores: float
    compute_s: float
    exchange_s: float
    ddp_step_s: float
    star_round_s: float
    star_compute_s: float


@dataclass(frozen=True)
class ComparedTime:
    cell: MeasuredCell
    what: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def from_page(text: str) -> list[MeasuredCell]:
    """The cells of docs/wan.md, whose tables have all that is needed."""
    tokens = {(_key(row), row["system"]): float(row["tokens"].replace(",", "")) for row in TOKENS_ROW.finditer(text)}
    found = []
    for row in SPEED_ROW.finditer(text):
        compute_s, exchange = float(row["t"]), float(row["x"])
        swarm_s, ddp_s = (NODES / float(row[name].replace(",", "")) for name in ("swarm", "ddp"))
        key = mbit, rtt_ms, lost, cores = _key(row)
        swarm_tokens, ddp_tokens = (tokens[key, name] for name in ("swarm", "DDP"))
        found.append(
            MeasuredCell(
                LinkSpec(mbit, rtt_ms, lost / 100),
                cores,
                compute_s,
                exchange,
                ddp_tokens * ddp_s,
                swarm_tokens * swarm_s,
                compute_s * swarm_tokens / ddp_tokens,
            )
        )
    return found


def _key(row: re.Match[str]) -> tuple[float, float, float, float]:
    return float(row["mbit"]), float(row["rtt"]), float(row["lost"]), float(row["cores"])


def compare(cells: Iterable[MeasuredCell]) -> list[ComparedTime]:
    found = []
    for cell in cells:
        ddp, star = (_setting(cell, seconds) for seconds in (cell.compute_s, cell.star_compute_s))
        found += [
            ComparedTime(cell, "X", cell.exchange_s, exchange_s(ddp)),
            ComparedTime(cell, "DDP", cell.ddp_step_s, _step_s(ddp, "all-reduce, DDP")),
            ComparedTime(cell, "star", cell.star_round_s, _step_s(star, "star, demo, base age 1")),
        ]
    return found


def _setting(cell: MeasuredCell, compute_s: float) -> Setting:
    link, own = cell.link, min(1.0, cell.cores)  # a node has one thread
    return Setting(
        sizes_of(PRESET)[0],
        ComputeTimes((compute_s,)),
        Network.uniform(NODES, link.rate_mbit * 1e6, link.round_trip_ms / 1000, loss=link.loss, congestion="bbr"),
        (1.0,) * NODES,
        COORDINATOR_BITS_S,
        COORDINATOR_BITS_S,
        passes=SAMPLES // MICRO_BATCH,
        rates=Rates(Rates().compress * own, Rates().apply * own, Rates().merge * own),
    )


def _step_s(setting: Setting, name: str) -> float:
    (variant,) = [one for one in all_variants(setting) if one.name == name]
    return variant.forecast(setting).seconds


def section(cells: Sequence[MeasuredCell]) -> str:
    """The part of the page, in Markdown."""
    compared = compare(cells)
    within = sum(abs(one.error) <= WITHIN for one in compared)
    lines = [
        TITLE,
        "What `thinwire plan` predicts for these cells ([planner.md](planner.md)). T is the only time taken from them.",
        "But the default rates for compress and apply, and the cost of a loss, were chosen after earlier cells of the",
        "same links had been seen. So the table shows how well the model fits, not how well it predicts.",
        f"{within} of {len(compared)} are within {WITHIN:.0%}; the target is 90% of 24 cells.\n",
    ]
    rows = []
    for cell in cells:
        link = cell.link
        cores = f"{cell.cores:g} {'core' if cell.cores <= 1 else 'cores'} per node"
        cells_of_row = [f"{link.rate_mbit:g} Mbit/s, {link.round_trip_ms:g} ms, {100 * link.loss:g}%, {cores}"]
        for one in (one for one in compared if one.cell is cell):
            cells_of_row += [f"{one.measured_s:.2f}", f"{one.predicted_s:.2f}", f"{one.error:+.0%}"]
        rows.append(cells_of_row)
    head = ("link", "X, s", "predicted", "", "DDP, a step, s", "predicted", "", "star, a round, s", "predicted", "")
    return "\n".join([*lines, table(head, rows)])


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.wide_area.predictions", description=__doc__)
    parser.add_argument("page", type=Path, help="docs/wan.md, which gets the section")
    path = parser.parse_args().page
    text = path.read_text(encoding="utf-8")
    before, found, rest = text.partition(TITLE)
    after = rest.partition(NEXT)[2] if found else before.partition(NEXT)[2]
    before = before if found else before.partition(NEXT)[0]
    path.write_text(f"{before}{section(from_page(text))}\n{NEXT}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
