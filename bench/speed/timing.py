"""Times several functions in turns, so that other load on the machine affects all of them alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

TURNS_MIN, TURNS_MAX = 7, 200
ENOUGH_S = 1.0
"""Short functions are repeated for so long."""


def interleaved(*works: Callable[[], object]) -> list[float]:
    """Seconds of each function: the minimum of several turns, which other load disturbs least, after one warm-up."""
    least = [math.inf] * len(works)
    for work in works:
        work()
    began, turn = time.perf_counter(), 0
    while turn < TURNS_MIN or (time.perf_counter() - began < ENOUGH_S and turn < TURNS_MAX):
        for index, work in enumerate(works):
            start = time.perf_counter()
            work()
            least[index] = min(least[index], time.perf_counter() - start)
        turn += 1
    return least


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set the number of torch's threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
