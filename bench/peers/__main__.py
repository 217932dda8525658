"""Measure other systems and thinwire on the same work over emulated slow links, one after the other."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import torch
from rich.console import Console

from bench.peers.figures import Outcome
from bench.peers.measure import Plan, measure
from bench.peers.report import write_page
from bench.peers.systems import SYSTEMS
from bench.studies import append, read
from bench.wide_area.needs import check_emulation
from deploy.local_swarm.processes import ENDING

RESULTS = "results.jsonl"
"""The file of outcomes: one line a measurement. Systems that it holds are not measured again."""


def main() -> None:
    arguments = _arguments()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    into: Path = arguments.into.absolute()
    into.mkdir(parents=True, exist_ok=True)
    if not arguments.page:
        for number in ENDING:
            signal.signal(number, _interrupt)
        try:
            _measure(arguments, into, console)
        except KeyboardInterrupt:
            console.print(f"\nstopped; the same command goes on. Finished measurements: {into / RESULTS}")
            sys.exit(130)
    outcomes = read(into / RESULTS, Outcome)
    if not outcomes:
        console.print(f"{into / RESULTS} has no measurements; leave --page out to take some")
        sys.exit(1)
    write_page(outcomes, arguments.write)
    console.print(f"page: {arguments.write}")


def _measure(arguments: argparse.Namespace, into: Path, console: Console) -> None:
    """Measure what the file of results does not hold yet."""
    torch.set_num_threads(1)  # two threads of the evaluator wait for each other on a busy machine
    machine = check_emulation()
    if machine.missing:
        console.print(f"skipped: emulating links needs {machine.missing}")
        sys.exit(1)
    plan = Plan(20, 40, quick=True) if arguments.quick else Plan(arguments.seconds, arguments.after, quick=False)
    done = {outcome.system for outcome in read(into / RESULTS, Outcome) if outcome.quick == plan.quick}
    for system in SYSTEMS:
        if system.name in done or (arguments.only and system.name not in arguments.only):
            continue
        folder = into / f"{system.name.replace(' ', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder.mkdir()
        outcome = measure(system, plan, machine, into / "environments", folder)
        append(into / RESULTS, outcome)
        if outcome.error:
            console.print(f"{system.name}: {outcome.error}; logs in {folder}", style="red")
            continue
        console.print(
            f"{system.name}: {outcome.tokens_s:,.0f} tokens/s, loss {outcome.curve[-1][2]:.3f} "
            f"after {outcome.curve[-1][0]:.0f} s; stood still {outcome.still_s:.1f} s"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("make bench-peers", description=__doc__)
    names = [system.name for system in SYSTEMS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="SYSTEM", help=f"of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="windows of 20 and 40 s, to try the command")
    parser.add_argument("--seconds", type=float, default=120, help="window of training; default %(default)s")
    parser.add_argument("--after", type=float, default=65, help="seconds watched after the kill; default %(default)s")
    parser.add_argument("--into", type=Path, default=Path("runs/peers"), help="results, logs and environments")
    parser.add_argument("--page", action="store_true", help="only write the page, from the results that are there")
    parser.add_argument("--write", type=Path, default=Path("docs/peers.md"), help="the page; default %(default)s")
    return parser.parse_args()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
