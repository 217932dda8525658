"""`make science`: run the arms side by side, and write what came out to docs/convergence.

Every run is a process of one thread, and its result a file; a study that was broken off goes on where it was. `--quick`
takes under 10 minutes on two cores, and says less.
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

from bench.convergence.arms import ARMS, MATTER
from bench.convergence.plan import Study, next_runs, runs_at_least
from bench.convergence.report import write_report
from bench.convergence.run import Run, Size
from bench.convergence.study import Going, StudyError, results_in, run_all

INTO = Path("docs") / "convergence"
FULL = Study(tuple(ARMS), Size(), 1 << 20, 1 << 22, (1, 2, 3), other_nodes=(16, 1))
LARGE_INTO = Path("docs") / "convergence-large"
LARGE = Study(MATTER, Size("byte-30m", 64, 512, "machine"), 10_000_000, 200_000_000, (1,))
QUICK_ARMS = ("adamw", "signum", "reference", "thinwire")
QUICK = Study(QUICK_ARMS, Size(held_out=128), 1 << 18, 1 << 19, (1,))


def main() -> None:
    arguments = _arguments()
    whole = QUICK if arguments.quick else LARGE if arguments.large else FULL
    study = replace(whole, arms=tuple(arguments.arms)) if arguments.arms else whole
    folder = arguments.into / "runs"
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if arguments.plan:
            _tell_plan(study, folder, console)
            return
        if not arguments.report:
            folder.mkdir(parents=True, exist_ok=True)
            with Live(console=console, refresh_per_second=1) as live:
                asyncio.run(run_all(study, folder, arguments.jobs, lambda going: live.update(_view(going))))
        write_report(whole, results_in(folder, whole), arguments.into)
        console.print(f"written to {arguments.into}")
    except StudyError as error:
        console.print(f"error: {error}", markup=False)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print(f"\nstopped; what is finished lies in {folder}, and the same command goes on from there")
        sys.exit(130)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.convergence", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="four arms, fewer tokens, one seed: under 10 minutes")
    parser.add_argument("--large", action="store_true", help="30M parameters, 200M tokens of this machine's text")
    parser.add_argument("--into", type=Path, help=f"of the results; default {INTO}, runs/science or {LARGE_INTO}")
    parser.add_argument("--jobs", type=int, help="runs at a time, a thread each; default: a core each, or one if large")
    parser.add_argument("--arms", nargs="+", choices=ARMS, help="run only these")
    parser.add_argument("--plan", action="store_true", help="say what is still to run, and run nothing")
    parser.add_argument("--report", action="store_true", help="write table and plots of what is there, and run nothing")
    arguments = parser.parse_args()
    default = Path("runs") / "science" if arguments.quick else LARGE_INTO if arguments.large else INTO
    arguments.into = arguments.into or default
    if arguments.jobs is None:
        arguments.jobs = 1 if arguments.large else os.cpu_count() or 1
    if arguments.jobs < 1:
        parser.error("--jobs must be 1 or more")
    return arguments


def _tell_plan(study: Study, folder: Path, console: Console) -> None:
    results = results_in(folder, study)
    for run in next_runs(study, results):
        console.print(run.name)
    left = runs_at_least(study, results)
    console.print(f"{len(results)} runs are done; at least {len(left)} are left, of {_tokens(left)} tokens")


def _tokens(runs: Sequence[Run]) -> str:
    return f"{sum(run.tokens for run in runs) / 1e6:.1f}M"


def _view(going: Going) -> Text:
    """A line a run, and one for the whole."""
    lines = [
        f"{run.name:<52} {100 * tokens / run.tokens:3.0f}%" for run, tokens in sorted(going.running.items(), key=str)
    ]
    left = going.left_s()
    when = "the end cannot be foretold yet" if left is None else f"about {left / 60:.0f} min left"
    newest = f"; {going.done[-1].run.name}: {going.done[-1].loss:.4f}" if going.done else ""
    lines.append(f"{len(going.done)} runs done, {len(going.left)} to go, {when}{newest}")
    return Text("\n".join(lines))


if __name__ == "__main__":
    main()
