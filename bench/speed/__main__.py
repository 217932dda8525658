"""The command behind `make bench`: measures all topics, then writes the table and the JSON.

`BENCH="--into docs"` also writes the page's table;
with `--only`, the rows of other topics stay as they are.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.speed import (
    fanout,
    gpu,
    memory,
    report,
    rounds,
    sizes,
    speeds,
    timing,
    training,
    update,
)
from bench.speed.row import BenchRow

RUNS = Path("runs")
Topic = Callable[[], Iterable[BenchRow]]
"""Measures the rows of a topic."""
TOPICS: dict[str, Topic] = {
    "sizes": sizes.rows,
    "speeds": speeds.rows,
    "update": update.rows,
    "gpu": gpu.rows,
    "fan-out": fanout.rows,
    "rounds": rounds.rows,
    "memory": memory.rows,
    "training": training.rows,
}
SPEEDS = ("speeds", "update", "fan-out")
"""Topics that are measured a second time, beside busy processes. The topic `training` does so itself. The phases of a
round are not: its ten members share the cores with the coordinator, so they would mostly measure each other."""


def measure(names: Iterable[str]) -> list[BenchRow]:
    """The rows of these topics, in the order of the table."""
    found: list[BenchRow] = []
    for name, topic in TOPICS.items():
        if name in names:
            print(f"{name} … ", end="", file=sys.stderr, flush=True)
            began = time.monotonic()
            found += topic()
            if name in SPEEDS:
                found += timing.beside_busy_cores(topic())
            print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser("make bench", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=TOPICS, default=list(TOPICS), metavar="TOPIC", help=", ".join(TOPICS)
    )
    parser.add_argument(
        "--into", type=Path, metavar="FOLDER", help="also write the page's table and JSON to this folder"
    )
    arguments = parser.parse_args()
    found, about = measure(arguments.only), report.machine()
    report.print_table(found, about)
    report.write_json(found, about, RUNS / "bench.json")
    print(f"written to {RUNS / 'bench.json'}")
    if arguments.into is not None:
        if set(arguments.only) != set(TOPICS):
            found = report.renewed(report.read_json(arguments.into / report.JSON_NAME)[0], found)
        report.write_page(found, about, arguments.into / report.PAGE_NAME)
        report.write_json(found, about, arguments.into / report.JSON_NAME)
        print(f"written to {arguments.into / report.PAGE_NAME}")


if __name__ == "__main__":
    main()
