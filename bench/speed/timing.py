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
TURNS_TYPICAL_MIN = 15
_typical = False


def interleaved(*works: Callable[[], object]) -> list[float]:
    """Seconds of each function, after one warm-up: the minimum of several turns, which other load disturbs least.

    Inside `typical_turns`, the median."""
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
def typical_turns() -> Iterator[None]:
    """Have `interleaved` return medians inside the block. Beside busy neighbours, the minimum would be a turn that by
    chance none of them disturbed."""
    global _typical  # noqa: PLW0603
    before, _typical = _typical, True
    try:
        yield
    finally:
        _typical = before


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set the number of torch's threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
