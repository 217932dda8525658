"""`make science`: run all arms of a study, and write the results to docs/convergence.

Each run is a process with one thread, and its result is a line of runs.jsonl. An interrupted study continues where it
stopped.
`--quick` takes under 10 minutes on two cores, and measures less.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from bench.convergence.arms import ARMS
from bench.convergence.plan import RESULTS, SWEEP_TOKENS, TOKENS, Study, StudyError, next_runs, results_in
from bench.convergence.report import SCALING_PAGE, write_report, write_scaling
from bench.convergence.run import Size, train
from bench.convergence.scaling import SCALINGS
from bench.studies import append, carry_out

INTO = Path("docs") / "convergence"
FULL = Study(tuple(ARMS), Size(), SWEEP_TOKENS, TOKENS, (1, 2, 3), other_nodes=(16, 1))
QUICK = Study(("adamw", "reference", "thinwire"), Size(held_out=128), 1 << 18, 1 << 19, (1,))


def main() -> None:
    arguments = _arguments()
    folder: Path = arguments.into
    folder.mkdir(parents=True, exist_ok=True)
    main_study = QUICK if arguments.quick else FULL
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if not arguments.report:
            for study in [one.study for one in SCALINGS] if arguments.scaling else [main_study]:
                run_all(study, folder, arguments.jobs)
        if arguments.scaling:
            write_scaling(folder)
        else:
            write_report(main_study, folder)
        print(f"written to {folder}")
    except StudyError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print(f"\nstopped; the finished results are in {folder / RESULTS}, and the same command continues from there")
        sys.exit(130)


def run_all(study: Study, folder: Path, jobs: int) -> None:
    """Carry out the missing runs, `jobs` at a time with one thread each."""
    for result in carry_out(train, lambda: next_runs(study, results_in(folder, study)), jobs):
        append(folder / RESULTS, result)
        left = len(next_runs(study, results_in(folder, study)))
        print(f"{result.run.name}: {result.loss:.4f}, {result.seconds:.0f} s; at least {left} to go", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.convergence", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="three arms, fewer tokens, one seed: under 10 minutes")
    parser.add_argument(
        "--scaling", action="store_true", help=f"1 to 64 nodes, two kinds of batches: {SCALING_PAGE}; days"
    )
    parser.add_argument("--into", type=Path, help=f"results folder; default {INTO} or runs/science")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel runs; default: one a core")
    parser.add_argument(
        "--report", action="store_true", help="write tables and plots of existing results, and run nothing"
    )
    arguments = parser.parse_args()
    arguments.into = arguments.into or (Path("runs") / "science" if arguments.quick else INTO)
    return arguments


if __name__ == "__main__":
    main()
