"""Times of things that are to be compared: taken in turns, so that what else the machine does falls on all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

REPEATS = 7


def interleaved(*works: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Seconds that each takes, the median of several turns, after one to warm up."""
    taken: list[list[float]] = [[] for _ in works]
    for turn in range(1 + repeats):
        for work, times in zip(works, taken, strict=True):
            began = time.perf_counter()
            work()
            if turn:
                times.append(time.perf_counter() - began)
    return [statistics.median(times) for times in taken]


@contextmanager
def threads(number: int) -> Iterator[None]:
    """torch computes with so many threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
