"""`make science`: make the runs of the study, and write the results to docs/convergence.

Each run is a process with one thread, and its result is a line of runs.jsonl. An interrupted study continues where it
stopped, in the middle of a run too. `--quick` takes under 10 minutes on two cores, and measures less.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.convergence.plan import ITEMS, QUICK_ITEMS, RESULTS, Item, StudyError, next_runs, results_in
from bench.convergence.report import write_quick, write_report
from bench.convergence.run import state_of, train_in
from bench.studies import append, carry_out

INTO = Path("docs") / "convergence"


def main() -> None:
    arguments = _arguments()
    folder: Path = arguments.into
    folder.mkdir(parents=True, exist_ok=True)
    write = write_quick if arguments.quick else write_report
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if not arguments.report:
            run_all(QUICK_ITEMS if arguments.quick else ITEMS, folder, arguments.jobs, write)
        write(folder)
        print(f"written to {folder}")
    except StudyError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print(f"\nstopped; the finished results are in {folder / RESULTS}, and the same command continues from there")
        sys.exit(130)


def run_all(items: Sequence[Item], folder: Path, jobs: int, write: Callable[[Path], None]) -> None:
    """Carry out the missing runs, `jobs` at a time with one thread each, and write the pages after each."""
    for result in carry_out(partial(train_in, folder), lambda: next_runs(items, results_in(folder)), jobs):
        append(folder / RESULTS, result)
        state_of(folder, result.run).unlink(missing_ok=True)
        write(folder)
        left = len(next_runs(items, results_in(folder)))
        print(f"{result.run.name}: {result.loss:.4f}, {result.seconds:.0f} s; at least {left} to go", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.convergence", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="three arms, fewer tokens, one seed: under 10 minutes")
    parser.add_argument("--into", type=Path, help=f"results folder; default {INTO} or runs/science")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel runs; default: one a core")
    parser.add_argument("--report", action="store_true", help="write the pages of existing results, and run nothing")
    arguments = parser.parse_args()
    arguments.into = arguments.into or (Path("runs") / "science" if arguments.quick else INTO)
    return arguments


if __name__ == "__main__":
    main()
