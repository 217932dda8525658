"""Batches are spread over threads of one torch thread each, and a thread that is held up delays only its own batch."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from thinwire_proto.batch_pool import process_batches

WAIT_S = 30.0
"""Only a failing test waits so long."""


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def number_of_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_each_item_is_processed_once_and_results_are_in_order(threads: int, count: int) -> None:
    torch.set_num_threads(threads)
    called: list[int] = []

    def work(item: int, slot: int) -> int:
        called.append(item)
        return item * item

    assert process_batches(work, range(count)) == [item * item for item in range(count)]
    assert sorted(called) == list(range(count))


@pytest.mark.parametrize("held_up", [0, 1])
def test_a_thread_that_is_held_up_delays_only_its_own_batch(held_up: int) -> None:
    """One thread takes a batch and gets no further until all other batches are done: a barrier would wait forever."""
    torch.set_num_threads(2)
    others_done, both_begun = threading.Event(), threading.Barrier(2)
    done: list[int] = []

    def work(item: int, slot: int) -> None:
        if item < 2:
            both_begun.wait(WAIT_S)  # so two threads have one batch each
        if item == held_up:
            assert others_done.wait(WAIT_S), "the other thread has not done the other batches"
        done.append(item)
        if len(done) == 9:
            others_done.set()

    process_batches(work, range(10))
    assert done[-1] == held_up
    assert sorted(done) == list(range(10))


def test_each_thread_has_one_torch_thread_and_its_own_slot() -> None:
    torch.set_num_threads(3)
    begun = threading.Barrier(3)

    def work(item: int, slot: int) -> tuple[int, int, bool]:
        begun.wait(WAIT_S)
        return torch.get_num_threads(), slot, torch.is_grad_enabled()

    found = process_batches(work, range(3))
    assert sorted(found) == [(1, slot, False) for slot in range(3)]
    assert process_batches(lambda item, slot: torch.get_num_threads(), [0]) == [1]  # a single batch is not split either


def test_the_program_keeps_its_number_of_torch_threads() -> None:
    torch.set_num_threads(3)
    begun = threading.Barrier(3)

    def work(item: int, slot: int) -> bool:
        begun.wait(WAIT_S)
        began = time.monotonic()
        while number_of_new_thread() != 3:  # threads that start meanwhile have it too
            assert time.monotonic() - began < WAIT_S
        return True

    assert all(process_batches(work, range(3)))
    assert (torch.get_num_threads(), number_of_new_thread()) == (3, 3)
    with pytest.raises(ZeroDivisionError):
        process_batches(lambda item, slot: 1 // item, range(4))
    assert (torch.get_num_threads(), number_of_new_thread()) == (3, 3)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_ends_the_job_after_the_batches_under_way(failing: int) -> None:
    torch.set_num_threads(2)
    both_begun, ended = threading.Barrier(2), list[int]()

    def work(item: int, slot: int) -> None:
        if item < 2:
            both_begun.wait(WAIT_S)
        if item == failing:
            raise ValueError("this batch fails")
        ended.append(item)

    with pytest.raises(ValueError, match="this batch fails"):
        process_batches(work, range(1000))
    assert 1 - failing in ended
    count = len(ended)
    assert process_batches(lambda item, slot: item, range(4)) == [0, 1, 2, 3]
    assert len(ended) == count  # no thread works on the failed job any more


@pytest.mark.skipif(sys.platform != "linux", reason="forks, as Linux programs do")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    torch.set_num_threads(2)
    process_batches(lambda item, slot: item, range(4))
    child = os.fork()
    if child == 0:
        begun = threading.Barrier(2)  # passed only by two threads
        process_batches(lambda item, slot: begun.wait(WAIT_S), range(2))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
