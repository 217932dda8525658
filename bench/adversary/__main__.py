"""`make bench-adversary`: play all scenes of the study, and write table and figures to docs/adversary.

Each result is written when its scene is over, so an interrupted study continues where it stopped. `--quick` plays a
quarter hostile only, in fewer rounds; it writes to runs/adversary.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

from bench.adversary.report import write_report
from bench.adversary.run import SceneResult, from_plain, plain, play
from bench.adversary.scene import FULL, QUICK, Scene, Study

INTO, QUICK_INTO = Path("docs") / "adversary", Path("runs") / "adversary"
RESULTS = "results.json"


def main() -> None:
    arguments = _arguments()
    study = QUICK if arguments.quick else FULL
    folder: Path = arguments.into or (QUICK_INTO if arguments.quick else INTO)
    folder.mkdir(parents=True, exist_ok=True)
    results = read(folder / RESULTS, study)
    results = {
        name: result for name, result in results.items() if not (arguments.again and fnmatch(name, arguments.again))
    }
    left = [
        scene
        for pattern in arguments.only
        for scene in study.scenes()
        if scene.name not in results and fnmatch(scene.name, pattern)
    ]
    left = list(dict.fromkeys(left))
    try:
        for number, result in enumerate(played([] if arguments.report else left, arguments.jobs), 1):
            results[result.scene.name] = result
            write(folder / RESULTS, study, results)
            done = f"{number}/{len(left)}  {result.scene.name:<32}"
            print(f"{done} {result.loss:.4f}  {result.seconds:.0f} s", flush=True)
    except KeyboardInterrupt:
        print(f"stopped; {folder / RESULTS} has the finished scenes, and the same command continues from there")
        sys.exit(130)
    write_report(study, results, folder)
    print(f"written to {folder}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.adversary", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="a quarter hostile only, and fewer rounds")
    parser.add_argument("--into", type=Path, help=f"results folder; default {INTO}, or {QUICK_INTO} if quick")
    parser.add_argument(
        "--only",
        nargs="+",
        default=["*"],
        metavar="PATTERN",
        help="play only such scenes, in this order: 'vote+trust-*'",
    )
    parser.add_argument("--again", metavar="PATTERN", help="forget the results of such scenes first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="scenes at a time; default: one a core")
    parser.add_argument("--report", action="store_true", help="write the table of what is there, and play nothing")
    return parser.parse_args()


def played(scenes: Sequence[Scene], jobs: int) -> Iterator[SceneResult]:
    """Play the scenes in processes of one thread each, and yield each result when it is there."""
    if not scenes:
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with torch's threads can hang
    with ProcessPoolExecutor(jobs, context, initializer=os.nice, initargs=(5,)) as pool:
        try:
            for done in as_completed([pool.submit(play, scene) for scene in scenes]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def read(path: Path, study: Study) -> dict[str, SceneResult]:
    """The results in a file, by the scene's name; none if the file is of another size."""
    if not path.exists():
        return {}
    document = json.loads(path.read_text(encoding="utf-8"))
    if document["size"] != asdict(study.size):
        return {}
    found = [from_plain(one, study.size) for one in document["results"]]
    return {result.scene.name: result for result in found}


def write(path: Path, study: Study, results: dict[str, SceneResult]) -> None:
    """Write all results in the order of the study, atomically."""
    ordered = [plain(results[scene.name]) for scene in study.scenes() if scene.name in results]
    lines = ",\n".join(json.dumps(one) for one in ordered)
    part = path.with_suffix(".part")
    part.write_text(f'{{"size": {json.dumps(asdict(study.size))}, "results": [\n{lines}\n]}}\n', encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    main()
