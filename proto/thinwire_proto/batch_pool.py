"""A pool of threads that process independent batches of work, each with a single thread of torch.

The problem: torch splits each operation over its threads, and waits at its end for all of them. Where another program
takes the core of one thread away, the others spin at that barrier, once for each operation: beside busy neighbours, two
threads are slower than one, and use several times the processor time.

The sketch: batches are spread over threads, operations are not. Each thread takes the next batch when it is done with
the last one, so a thread that lost its core delays only its own batch. Batches have the same boundaries whatever the
number of threads, and one thread of torch computes each, so the number of threads does not change a bit of the result.

A job uses as many threads as torch has on the calling thread, which is one of them: beside busy neighbours, the system
often wakes several waiting threads on the same core, but leaves a running one where it is.

The answers that fail: a fixed share of the batches for each thread, which is a barrier again; fewer threads of torch in
the whole program, which makes forward and backward slower; a calling thread that only waits (docs/log/speed.md).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch

from thinwire_proto.out_of_memory import is_out_of_memory, retry_out_of_memory

THREADS_MAX = 64
"""Threads of one job, and of the pool."""
CPU = torch.device("cpu")
Item = TypeVar("Item")
Result = TypeVar("Result")


class _Threads:
    """The threads of this process. `setter` does nothing but set torch's number for new threads."""

    def __init__(self) -> None:
        self.helpers = ThreadPoolExecutor(THREADS_MAX, "batches")
        self.setter = ThreadPoolExecutor(1, "torch-threads")


_threads: _Threads | None = None
_threads_lock = threading.Lock()


def process_batches(
    work: Callable[[Item, int], Result], items: Iterable[Item], device: torch.device = CPU
) -> list[Result]:
    """Call `work` once for each item, without gradients, on several threads and in any order. Returns the results in
    the order of the items.

    work: gets the item and a slot, 0 … `THREADS_MAX` − 1. No two calls have the same slot at the same time, so buffers
    can be kept by slot. If a call raises, items that no thread has taken are dropped, and the error is raised here.
    device: of the work. Only work on the CPU is spread over threads.

    A call that runs out of memory is repeated once the others are done, on one thread; see `retry_out_of_memory`. So
    work that changes tensors must do so after its last allocation, or keep what it has done. Raises TooLittleMemory.
    """
    todo = deque(enumerate(items))
    failed: deque[tuple[int, Item]] = deque()
    results: dict[int, Result] = {}
    count, number = len(todo), torch.get_num_threads()

    @torch.no_grad()
    def run(slot: int) -> None:
        while todo:
            try:
                index, item = todo.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                results[index] = work(item, slot)
            except BaseException as error:
                if is_out_of_memory(error):
                    failed.append((index, item))
                    continue
                todo.clear()
                raise

    def help_out(slot: int) -> None:
        _use_one_torch_thread(number)
        run(slot)

    if device.type != "cpu" or number == 1:
        run(0)
    else:
        pool = _started().helpers
        helpers = [pool.submit(help_out, slot) for slot in range(1, min(number, count, THREADS_MAX))]
        try:
            with one_torch_thread():
                run(0)
        finally:
            todo.clear()
            begun = [helper for helper in helpers if not helper.cancel()]
            wait(begun)  # after an error or an interrupt too: nobody writes to the caller's tensors any more
        for helper in begun:
            helper.result()
    if failed:
        with torch.no_grad(), one_torch_thread():
            for index, item in failed:
                results[index] = retry_out_of_memory(partial(work, item, 0))
    return [results[index] for index in range(count)]


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Use one thread of torch on this thread, inside the block: for work that is not worth splitting."""
    number = torch.get_num_threads()
    setting = _use_one_torch_thread(number)
    try:
        yield
    finally:
        if setting is not None and not setting.cancel():
            setting.result()  # not later, when the program may have set another number
        if number != 1:
            torch.set_num_threads(number)


def _use_one_torch_thread(for_new_threads: int) -> Future[None] | None:
    """Use one thread of torch on this thread from now on.

    torch keeps a number for each thread, and one for threads that are new to it. `torch.set_num_threads` sets both, so
    another thread sets the second one again.
    """
    if torch.get_num_threads() == 1:
        return None
    torch.set_num_threads(1)
    return _started().setter.submit(torch.set_num_threads, for_new_threads)


def _started() -> _Threads:
    global _threads  # noqa: PLW0603
    with _threads_lock:
        if _threads is None:
            _threads = _Threads()
        return _threads


def _forget_threads() -> None:
    """Threads do not survive a fork, so the child starts its own."""
    global _threads, _threads_lock
    _threads, _threads_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
