"""`make science`: run all arms of a study, and write the results to docs/convergence.

Each run is a process with one thread, and its result is a line of runs.jsonl. An interrupted study continues where it
stopped.
`--quick` takes under 10 minutes on two cores, and measures less.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from bench.convergence.arms import ARMS, CANDIDATES
from bench.convergence.plan import SWEEP_TOKENS, TOKENS, Study, next_runs, runs_at_least
from bench.convergence.report import write_report
from bench.convergence.run import RESULTS, Run, Size
from bench.convergence.scaling import PAGE, TITLES, run_scalings, selected, write_page
from bench.convergence.study import Progress, StudyError, results_in, run_all

INTO = Path("docs") / "convergence"
FULL = Study(
    tuple(arm for arm in ARMS if arm not in CANDIDATES), Size(), SWEEP_TOKENS, TOKENS, (1, 2, 3), other_nodes=(16, 1)
)
QUICK_ARMS = ("adamw", "signum", "reference", "thinwire")
QUICK = Study(QUICK_ARMS, Size(held_out=128), 1 << 18, 1 << 19, (1,))


def main() -> None:
    arguments = _arguments()
    whole = QUICK if arguments.quick else FULL
    study = replace(whole, arms=tuple(arguments.arms)) if arguments.arms else whole
    folder = arguments.into
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if arguments.scaling:
            _many_nodes(arguments, console)
            return
        if arguments.plan:
            _print_plan(study, folder, console)
            return
        if not arguments.report:
            folder.mkdir(parents=True, exist_ok=True)
            with Live(console=console, refresh_per_second=1) as live:
                asyncio.run(run_all(study, folder, arguments.jobs, lambda progress: live.update(_view(progress))))
        write_report(whole, results_in(folder, whole), folder)
        console.print(f"written to {folder}")
    except StudyError as error:
        console.print(f"error: {error}", markup=False)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print(
            f"\nstopped; the finished results are in {folder / RESULTS}, and the same command continues from there"
        )
        sys.exit(130)


def _many_nodes(arguments: argparse.Namespace, console: Console) -> None:
    folder = arguments.into
    scalings = selected(arguments.arms or ())
    if arguments.plan:
        for one in scalings:
            console.print(f"{TITLES[one.kind]}, {one.nodes} nodes", style="bold")
            _print_plan(one.study, folder, console)
        return
    if not arguments.report:
        folder.mkdir(parents=True, exist_ok=True)
        with Live(console=console, refresh_per_second=1) as live:
            whole = run_scalings(scalings, folder, arguments.jobs, lambda progress: live.update(_view(progress)))
            asyncio.run(whole)
    write_page(folder)
    console.print(f"written to {arguments.into / PAGE}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.convergence", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="four arms, fewer tokens, one seed: under 10 minutes")
    parser.add_argument("--scaling", action="store_true", help=f"1 to 64 nodes, two kinds of batches: {PAGE}; days")
    parser.add_argument("--into", type=Path, help=f"results folder; default {INTO} or runs/science")
    parser.add_argument("--jobs", type=int, help="parallel runs, one thread each; default: one a core")
    parser.add_argument("--arms", nargs="+", choices=ARMS, help="run only these arms")
    parser.add_argument("--plan", action="store_true", help="list the remaining runs, and run nothing")
    parser.add_argument(
        "--report", action="store_true", help="write tables and plots of existing results, and run nothing"
    )
    arguments = parser.parse_args()
    default = Path("runs") / "science" if arguments.quick else INTO
    arguments.into = arguments.into or default
    if arguments.jobs is None:
        arguments.jobs = os.cpu_count() or 1
    if arguments.jobs < 1:
        parser.error("--jobs must be 1 or more")
    return arguments


def _print_plan(study: Study, folder: Path, console: Console) -> None:
    results = results_in(folder, study)
    for run in next_runs(study, results):
        console.print(run.name)
    left = runs_at_least(study, results)
    console.print(f"{len(results)} runs are done; at least {len(left)} are left, of {_tokens(left)} tokens")


def _tokens(runs: Sequence[Run]) -> str:
    return f"{sum(run.tokens for run in runs) / 1e6:.1f}M"


def _view(progress: Progress) -> Text:
    """One line for each run, and one for the whole study."""
    lines = [
        f"{run.name:<52} {100 * tokens / run.tokens:3.0f}%" for run, tokens in sorted(progress.running.items(), key=str)
    ]
    left = progress.left_s()
    when = "the remaining time is not known yet" if left is None else f"about {left / 60:.0f} min left"
    newest = f"; {progress.done[-1].run.name}: {progress.done[-1].loss:.4f}" if progress.done else ""
    lines.append(f"{len(progress.done)} runs done, {len(progress.left)} to go, {when}{newest}")
    return Text("\n".join(lines))


if __name__ == "__main__":
    main()
