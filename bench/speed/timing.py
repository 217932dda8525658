"""Times several functions in turns, so that other load on the machine affects all of them alike."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter as seconds

import torch

TURNS_MIN, TURNS_MAX = 7, 200
ENOUGH_S = 1.0
"""Short functions are repeated for so long."""
TURNS_SHARED_MIN = 25
_shared = False


def interleaved(*works: Callable[[], object]) -> list[float]:
    """Seconds of each function, after one warm-up: the minimum of several turns, which other load disturbs least.

    Inside `on_shared_cores`, the mean."""
    taken: list[list[float]] = [[] for _ in works]
    turns_min = TURNS_SHARED_MIN if _shared else TURNS_MIN
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
    statistic: Callable[[Sequence[float]], float] = statistics.fmean if _shared else min
    return [statistic(times) for times in taken]


@contextmanager
def on_shared_cores() -> Iterator[None]:
    """Have `interleaved` return means inside the block.

    Beside busy neighbours, the minimum would be a turn that by chance none of them disturbed. A median would favour
    long work: most turns of a few milliseconds share their core from start to end, while long ones move to a free one
    meanwhile."""
    global _shared  # noqa: PLW0603
    before, _shared = _shared, True
    try:
        yield
    finally:
        _shared = before


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set the number of torch's threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
