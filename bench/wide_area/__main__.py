"""Measure a swarm and DistributedDataParallel over emulated links, cell by cell."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import signal
import sys
from itertools import product
from pathlib import Path
from types import FrameType

from rich.console import Console

from bench.studies import append
from bench.wide_area.cores import NODES_SHARE, groups_for
from bench.wide_area.ddp import measure_control, measure_ddp
from bench.wide_area.figures import WANTED_AT, CellResult, SkippedCell
from bench.wide_area.hosts import LinkSpec, hosts_behind
from bench.wide_area.needs import EmulationSupport, check_emulation
from bench.wide_area.report import PAGE, write_page
from bench.wide_area.swarm import measure_swarm
from bench.wide_area.workload import MICRO_BATCH, NODES, PRESET, SAMPLES, SEED, round_samples
from deploy.local_swarm.processes import ENDING, SwarmError
from thinwire_proto.models import PRESETS

Cell = tuple[LinkSpec, float]
"""A link, and how many times the cores that a node has without dilated time."""
CELLS = "cells.jsonl"
"""The file of finished cells in the folder of a run."""
RATE_MBIT_MAX = 100
"""The line in Python is limited by packets a second; above this rate it would itself be the bottleneck."""
CONTROL_SHARE = 0.5
"""Window of each control, as a share of the others; it is shorter because nothing in it waits."""


def main() -> None:
    arguments = _arguments()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    machine = check_emulation()
    if machine.missing:
        console.print(f"skipped: emulating links needs {machine.missing}")
        return
    for number in ENDING:
        signal.signal(number, _interrupt)
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path("runs").absolute() / f"wan-{stamp}-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        failed = _measure(_cells(arguments), machine, arguments, folder, console)
    except KeyboardInterrupt:
        console.print(f"\nstopped; everything that was started has ended. Logs and finished cells: {folder}")
        sys.exit(130)
    sys.exit(1 if failed else 0)


def _measure(
    cells: list[Cell], machine: EmulationSupport, arguments: argparse.Namespace, folder: Path, console: Console
) -> int:
    """Measure all cells in turn. A cell that fails is skipped with its reason. Returns the number of failures."""
    failed = 0
    outcomes: list[CellResult] = []
    skipped: list[SkippedCell] = []
    how = _how(machine, arguments)
    console.print(f"{how}\nlogs in {folder}")
    for link, times in cells:
        dilation = times / _nodes_share(machine)
        name = f"{link.rate_mbit:g} Mbit/s, {link.round_trip_ms:g} ms, {100 * link.loss:g}%, {times:g}×"
        cell = folder / f"{link.rate_mbit:g}-{link.round_trip_ms:g}-{100 * link.loss:g}-{times:g}"
        cell.mkdir()
        try:
            outcome = _cell(link, dilation, machine, arguments, cell)
        except SwarmError as error:
            failed += 1
            skipped.append(SkippedCell(link, f"failed: {str(error).splitlines()[0]}"))
            console.print(f"{name}: failed: {error}", style="red")
            continue
        outcomes.append(outcome)
        append(folder / CELLS, outcome)
        console.print(
            f"{name}: X/T {outcome.x_over_t:.1f}; swarm {outcome.swarm.tokens_s:,.0f} tokens/s, "
            f"DDP {outcome.ddp.tokens_s:,.0f}: {outcome.gain:.1f}× of {outcome.gain_max:.1f}×, "
            f"{outcome.gain_share:.0%}; forward and backward {outcome.swarm_compute_share:.0%}"
        )
    into = arguments.into or folder
    write_page(outcomes, skipped, how, into / f"{arguments.page}.md")
    console.print(f"figures in {folder}, page in {into}")
    return failed


def _cell(
    link: LinkSpec, dilation: float, machine: EmulationSupport, arguments: argparse.Namespace, folder: Path
) -> CellResult:
    """Measure one cell. The swarm comes before the baseline, which uses the same number of tokens per exchange, and
    between two controls, because a virtual machine's speed changes by a tenth within minutes."""
    seconds, samples = arguments.seconds * dilation, round_samples(arguments.samples, dilation)
    lines = (link.dilated(dilation), NODES, SEED, folder)
    with groups_for(machine.controller, NODES) as groups, hosts_behind(*lines, groups=groups) as hosts:
        before = measure_control(hosts, samples, CONTROL_SHARE * seconds, folder)
        swarm = measure_swarm(hosts, seconds, samples, folder)
        like_swarm = max(2, round(swarm.tokens_each / PRESETS[PRESET].context / MICRO_BATCH)) * MICRO_BATCH
        after = measure_control(hosts, like_swarm, CONTROL_SHARE * seconds, folder)
        ddp, exchange_s = measure_ddp(hosts, like_swarm, seconds, folder)
    cores = os.cpu_count() or 1
    return CellResult(link, before + after, swarm, ddp, exchange_s, cores, dilation, _nodes_share(machine))


def _nodes_share(machine: EmulationSupport) -> float:
    return NODES_SHARE if machine.controller else 1.0


def _how(machine: EmulationSupport, arguments: argparse.Namespace) -> str:
    parts = f"each node with a quota, {NODES_SHARE:g} of them in all" if machine.controller else "shared by all"
    # namespaces inherit this setting; allowing others would change the whole machine
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return (
        f"{os.cpu_count()} cores ({platform.machine()}, Linux {platform.release().split('-')[0]}), {parts}; "
        f"links by a line in Python over TUN devices, TCP with {congestion}, {arguments.seconds:g} s a window, "
        f"seed {SEED}, {arguments.samples:g} samples of a node in a round without dilated time, "
        "bases at most 1 step old."
    )


def _cells(arguments: argparse.Namespace) -> list[Cell]:
    links = [
        LinkSpec(rate, round_trip, percent / 100)
        for rate, round_trip, percent in product(arguments.rates, arguments.round_trips, arguments.losses)
    ]
    deciding = [link for link in links if (link.rate_mbit, link.round_trip_ms) == WANTED_AT]
    return [(link, by) for by in arguments.dilations for link in (links if by == 1 else deciding)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("make bench-wan", description=__doc__)
    parser.add_argument("--rates", type=_rate, nargs="+", default=[10, 100], metavar="MBIT")
    parser.add_argument("--round-trips", type=_positive, nargs="+", default=[20, 100], metavar="MS")
    parser.add_argument("--losses", type=_percent, nargs="+", default=[0, 1], metavar="PERCENT")
    parser.add_argument(
        *("--dilations", "-d"),
        type=_positive,
        nargs="+",
        default=[1, 2, 4],
        metavar="BY",
        help="cores of a node, times those without dilated time; 10 Mbit/s and 100 ms are measured with each of them, "
        "other links with 1; default 1 2 4",
    )
    parser.add_argument(
        "--seconds", type=_positive, default=60, help="length of a window, in the emulated world; default 60"
    )
    parser.add_argument(
        "--samples",
        type=_positive,
        default=SAMPLES,
        metavar="N",
        help=f"samples of a node in a round, without dilated time; default {SAMPLES}",
    )
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="folder for the page; default: that of the run")
    parser.add_argument("--page", default=PAGE, metavar="NAME", help="name of the page; default %(default)s")
    return parser.parse_args()


def _positive(text: str) -> float:
    number = float(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"must be more than 0, not {text}")
    return number


def _rate(text: str) -> float:
    number = _positive(text)
    if number > RATE_MBIT_MAX:
        raise argparse.ArgumentTypeError(f"the line in Python carries at most {RATE_MBIT_MAX} Mbit/s, not {text}")
    return number


def _percent(text: str) -> float:
    number = float(text)
    if not 0 <= number < 100:
        raise argparse.ArgumentTypeError(f"must be 0 or more and less than 100, not {text}")
    return number


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
