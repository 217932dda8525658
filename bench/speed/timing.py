"""Times of things that are to be compared: taken in turns, so that what else the machine does falls on all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

TURNS_MIN, TURNS_MAX = 7, 200
ENOUGH_S = 1.0
"""So long are short things repeated."""


def interleaved(*works: Callable[[], object]) -> list[float]:
    """Seconds that each takes: the least of several turns, which other work on the machine disturbs least, after one
    to warm up."""
    least = [math.inf] * len(works)
    for work in works:
        work()
    began, turn = time.perf_counter(), 0
    while turn < TURNS_MIN or (time.perf_counter() - began < ENOUGH_S and turn < TURNS_MAX):
        for place, work in enumerate(works):
            start = time.perf_counter()
            work()
            least[place] = min(least[place], time.perf_counter() - start)
        turn += 1
    return least


@contextmanager
def threads(number: int) -> Iterator[None]:
    """torch computes with so many threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
