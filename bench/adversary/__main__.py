"""`make bench-adversary`: play all scenes of the study, and write table and figures to docs/adversary.

Each result is written when its scene is over, so an interrupted study continues where it stopped. `--quick` plays a
quarter hostile only, in fewer rounds; it writes to runs/adversary.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from bench.adversary.report import Results, write_report
from bench.adversary.run import SceneResult, play
from bench.adversary.scene import FULL, QUICK, Scene, Study
from bench.studies import append, carry_out, read

INTO, QUICK_INTO = Path("docs") / "adversary", Path("runs") / "adversary"
RESULTS = "results.jsonl"


def main() -> None:
    arguments = _arguments()
    study = QUICK if arguments.quick else FULL
    folder: Path = arguments.into or (QUICK_INTO if arguments.quick else INTO)
    folder.mkdir(parents=True, exist_ok=True)
    results = results_in(folder)
    try:
        if not arguments.report:
            play_all(study, results, folder, arguments.jobs)
    except KeyboardInterrupt:
        print(f"stopped; {folder / RESULTS} has the finished scenes, and the same command continues from there")
        sys.exit(130)
    write_report(study, results, folder)
    print(f"written to {folder}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.adversary", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="a quarter hostile only, and fewer rounds")
    parser.add_argument("--into", type=Path, help=f"results folder; default {INTO}, or {QUICK_INTO} if quick")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="scenes at a time; default: one a core")
    parser.add_argument("--report", action="store_true", help="write the table of what is there, and play nothing")
    return parser.parse_args()


def results_in(folder: Path) -> Results:
    return {result.scene: result for result in read(folder / RESULTS, SceneResult)}


def play_all(study: Study, results: Results, folder: Path, jobs: int) -> None:
    """Play the scenes that have no result yet, and add their results."""

    def missing() -> list[Scene]:
        return [scene for scene in study.scenes() if scene not in results]

    for result in carry_out(play, missing, jobs):
        append(folder / RESULTS, result)
        results[result.scene] = result
        print(f"{result.scene.name}: {result.loss:.4f}, {result.seconds:.0f} s; {len(missing())} to go", flush=True)


if __name__ == "__main__":
    main()
