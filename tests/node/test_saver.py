"""Tests of the saver: a save in progress survives the end of the task that waits for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.small import random_replica, small_contract
from thinwire_node.storage.state import Head, KeptMomentum, NodeState, Written
from thinwire_node.training.saver import Passing, Saver
from thinwire_node.training.threads import NodeJob, Threads, WorkerThread

SHAPES = {"momentum": (2,)}


class SlowState(NodeState):
    """A state directory on a disk that syncs files only once `may_write` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_write = threading.Event()

        self.heads_written = 0

    def publish(self, *written: Written) -> None:
        assert self.may_write.wait(timeout=30)
        super().publish(*written)

    def write_head(self) -> None:
        assert self.may_write.wait(timeout=30)
        super().write_head()
        self.heads_written += 1


@pytest.fixture
def threads() -> Iterator[Threads]:
    found = Threads(WorkerThread("compute"), WorkerThread("saver"), WorkerThread("journal"))
    yield found
    found.close()


async def test_a_session_cancelled_during_a_save_loses_no_momentum(tmp_path: Path, threads: Threads) -> None:
    state = SlowState(tmp_path / "node")
    saver = Saver(state, threads, time.monotonic, round_s=1.0)
    replica = random_replica(small_contract())
    await saver.note_sent(b"\1" * 32)
    momentum = torch.ones(2)

    async def write(trained_through: int) -> Passing:
        return saver.write(replica, KeptMomentum({"momentum": momentum}, trained_through, None))

    saver.begin(lambda: write(7))
    session = asyncio.ensure_future(saver.finish())
    await asyncio.sleep(0)
    session.cancel()
    with pytest.raises(asyncio.CancelledError):
        await session
    state.may_write.set()
    await saver.finish()  # as the shutdown of the node does before its last save
    assert state.sent() == []
    await saver.save(lambda: write(9))
    kept = state.momentum(SHAPES)
    assert kept is not None
    assert kept.trained_through == 9
    state.close()


async def test_a_save_comes_before_every_job_that_is_queued_after_it(tmp_path: Path, threads: Threads) -> None:
    """A rule may learn from the next micro-batch, and the saved momentum names only samples before it."""
    state = NodeState(tmp_path / "node")
    saver, momentum = Saver(state, threads, time.monotonic, round_s=1.0), torch.ones(2)
    kept = KeptMomentum({"momentum": momentum}, 7, None)
    replica = random_replica(small_contract())
    saver.begin(lambda: threads.compute.run(NodeJob.COPY, saver.write, replica, kept))
    await threads.compute.run(NodeJob.MICRO_BATCH, momentum.zero_)
    await saver.finish()
    found = state.momentum(SHAPES)
    assert found is not None
    assert found.momentum["momentum"].tolist() == [1, 1]
    state.close()


async def test_updates_go_on_while_a_slow_disk_writes_a_head(tmp_path: Path, threads: Threads) -> None:
    state = SlowState(tmp_path / "node")
    saver = Saver(state, threads, time.monotonic, round_s=1.0)
    for step in range(1, 10):
        state.advance(Head(step, bytes([step]) * 32))
        saver.note_head()
        await asyncio.sleep(0)
    assert state.heads_written == 0
    assert state.head == Head(9, b"\x09" * 32)  # what the node would say if it joined again
    state.may_write.set()
    await saver.finish()
    assert state.heads_written == 2
    state.close()
    again = NodeState(tmp_path / "node")
    assert again.head == Head(9, b"\x09" * 32)
    again.close()


async def test_a_head_that_cannot_be_written_is_told_with_the_next_one(tmp_path: Path, threads: Threads) -> None:
    state = NodeState(tmp_path / "node")
    saver = Saver(state, threads, time.monotonic, round_s=1.0)
    state.advance(Head(1, b"\1" * 32))
    (tmp_path / "node" / "head.json.part").mkdir()
    saver.note_head()
    with pytest.raises(OSError, match=r"head\.json\.part"):
        await saver.finish()
    with pytest.raises(OSError, match=r"head\.json\.part"):
        saver.note_head()
    state.close()
