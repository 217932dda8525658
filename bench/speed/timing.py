"""Times several functions in turns, so that other load on the machine affects all of them alike, and also beside
processes that keep all cores busy."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter as seconds

import torch

from bench.speed.row import BenchRow

TURNS_MIN, TURNS_MAX = 7, 200
ENOUGH_S = 1.0
"""Short functions are repeated for so long."""
TURNS_TYPICAL_MIN = 15
_typical = False
BUSY = "beside a busy process on each core"
PROGRAM = "while True: pass"
BYTES = ("B", "kB", "bytes", "B/param")
"""Units that busy neighbours do not change."""


def interleaved(*works: Callable[[], object]) -> list[float]:
    """Seconds of each function, after one warm-up: the minimum of several turns, which other load disturbs least.

    Inside `busy_cores`, the median: there the minimum would be a turn that by chance no neighbour disturbed."""
    taken: list[list[float]] = [[] for _ in works]
    turns_min = TURNS_TYPICAL_MIN if _typical else TURNS_MIN
    for work in works:
        work()
    began, turn, order = seconds(), 0, random.Random(1)
    while turn < turns_min or (seconds() - began < ENOUGH_S and turn < TURNS_MAX):
        # in another order each turn: what ran before leaves spinning threads, and a debt to the scheduler
        for index in order.sample(range(len(works)), len(works)):
            start = seconds()
            works[index]()
            taken[index].append(seconds() - start)
        turn += 1
    statistic: Callable[[Sequence[float]], float] = statistics.median if _typical else min
    return [statistic(times) for times in taken]


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set the number of torch's threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep as many processes busy as there are cores, at this process's priority."""
    global _typical  # noqa: PLW0603
    processes = [subprocess.Popen([sys.executable, "-c", PROGRAM]) for _ in range(os.cpu_count() or 1)]
    before, _typical = _typical, True
    try:
        yield
    finally:
        _typical = before
        for process in processes:
            process.kill()
            process.wait()


def beside_busy_cores(rows: Iterable[BenchRow]) -> Iterator[BenchRow]:
    """Measure rows lazily beside busy processes. Drops those in bytes, which would be the same."""
    with busy_cores():
        for row in rows:
            if row.unit not in BYTES:
                yield replace(row, topic=f"{row.topic}, {BUSY}")
