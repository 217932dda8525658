"""Tests what the processes of one node say to each other, with real processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from support.small import random_replica, small_contract, small_corpus
from thinwire_node.cli.site import LOOPBACK, Launch, launch, store_at
from thinwire_node.star.site import follower
from thinwire_node.star.site.leader import LeaderReplica, LeaderTrainer
from thinwire_node.star.site.shares import Shares
from thinwire_node.star.work import Work
from thinwire_node.storage.state import NodeState
from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.failures import Interrupted
from thinwire_node.training.ranks import RankLost, Ranks
from thinwire_node.training.threads import Threads, WorkerThread
from thinwire_proto.data.text import CorpusText
from thinwire_proto.errors import UsageError
from thinwire_proto.task import Batch, task_of

PATIENCE_S = 100.0
TENSORS = [
    torch.arange(7),
    torch.tensor(3.5),
    torch.empty(0, 4, dtype=torch.int8),
    torch.ones(2, 3, dtype=torch.bool),
    torch.arange(6, dtype=torch.int16).view(2, 3).T,
]
Scene = Callable[[Ranks], Any]
Missing = Callable[[Path, int, int], None]
CONTEXT = multiprocessing.get_context("forkserver")
if sys.platform == "linux":  # elsewhere, a fork after these imports is not safe
    # importing torch takes two seconds of a core; the server does it once for all ranks
    CONTEXT.set_forkserver_preload(["thinwire_node.star.site.leader", "support.small", "pytest"])


def played(folder: Path, scene: Scene, size: int) -> dict[int, Any]:
    """The result of each rank's scene, by rank. A rank that kills itself returns nothing."""
    results = CONTEXT.SimpleQueue()
    ranks = [CONTEXT.Process(target=_play, args=(folder / "place", scene, rank, size, results)) for rank in range(size)]
    found = joined(ranks, results)
    assert found.keys() == {rank for rank, process in enumerate(ranks) if process.exitcode != -signal.SIGKILL}
    return found


def joined(processes: Sequence[ForkServerProcess], results: SimpleQueue[Any]) -> dict[int, Any]:
    """The results that the processes have left in the queue when all have ended, by rank."""
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)
        assert not process.is_alive()
    found = {}
    while not results.empty():
        rank, result = results.get()
        found[rank] = result
    return found


def _play(place: Path, scene: Scene, rank: int, size: int, results: SimpleQueue[Any]) -> None:
    os.environ.update(LOOPBACK)
    ranks = Ranks(store_at(place, size), rank, size)
    results.put((rank, scene(ranks)))
    ranks.end()


def absent(place: Path, rank: int, size: int) -> None:
    """A rank that never comes."""


def dying_amid(place: Path, rank: int, size: int) -> None:
    """A rank that is gone before it has met the others."""
    dist.init_process_group("gloo", store=store_at(place, size), rank=rank, world_size=size)
    os.kill(os.getpid(), signal.SIGKILL)


def _meet(place: Path, rank: int, size: int, results: SimpleQueue[Any]) -> None:
    os.environ.update(LOOPBACK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("thinwire_node.training.ranks.RANKS_MEET_S", 3.0)
        try:
            Ranks(store_at(place, size), rank, size)
        except RankLost as error:
            results.put((rank, str(error)))


def talking(ranks: Ranks) -> Any:
    if ranks.rank:
        head, tensors = ranks.hear()
        ranks.answer({"rank": ranks.rank, "same": all(map(torch.equal, tensors, TENSORS))} | head, tensors[:2])
        return ranks.hear()[0]["job"]
    ranks.tell({"step": 5}, TENSORS)
    return [(head, [tensor.tolist() for tensor in tensors]) for head, tensors in ranks.answers()]


def test_a_message_comes_as_it_was_sent(tmp_path: Path) -> None:
    tensors = [[0, 1, 2, 3, 4, 5, 6], 3.5]
    expected = [({"rank": rank, "same": True, "step": 5}, tensors) for rank in (1, 2)]
    assert played(tmp_path, talking, 3) == {0: expected, 1: "end", 2: "end"}


def interrupting(ranks: Ranks) -> Any:
    """The followers are amid a job when the leader interrupts it."""
    if ranks.rank == 0:
        ranks.tell({"job": "compute"})
        ranks.interrupt()
        ranks.interrupt()
        return [head["interrupted"] for head, _ in ranks.answers()]
    interrupted = threading.Event()
    ranks.on_interrupt(interrupted.set)
    ranks.hear()
    ranks.answer({"interrupted": interrupted.wait(PATIENCE_S / 2)})
    return ranks.hear()[0]["job"]


def test_the_leader_interrupts_what_the_followers_compute(tmp_path: Path) -> None:
    assert played(tmp_path, interrupting, 3) == {0: [True, True], 1: "end", 2: "end"}


class SlowCompute(TorchCompute):
    """Computes until it is interrupted."""

    def _loss(self, batch: Batch) -> Tensor:
        while True:
            self._check_interrupted()
            time.sleep(0.01)


def pausing(ranks: Ranks) -> Any:
    """The leader has trained its share of a micro-batch, and the follower has not, when the owner pauses the node."""
    if ranks.rank == 0:
        return asyncio.run(_paused(ranks))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follower, "TorchCompute", SlowCompute)
        follower.Follower(ranks, torch.device("cpu")).run()
    return None


async def _paused(ranks: Ranks) -> tuple[int, int | None, list[int]]:
    contract, cpu = small_contract(round={"samples": 4}), torch.device("cpu")
    replica = random_replica(contract)
    led = LeaderReplica(replica, Shares(replica.layout, ranks, contract.rule))
    threads = Threads(WorkerThread("compute"), WorkerThread("save"), WorkerThread("join"))
    with TemporaryDirectory() as name:
        folder = Path(name)
        data, compute = CorpusText(small_corpus(), contract), TorchCompute(task_of(contract.model), cpu)
        trainer = LeaderTrainer(contract, data, led, compute, folder)
        work = Work(contract, NodeState(folder), trainer, threads, time.monotonic, None)
        work.lease.renew([range(100)])
        training = asyncio.ensure_future(work.train(4))  # two samples for each
        while not trainer._rank.trainer.samples:
            await asyncio.sleep(0.01)
        work.interrupt()
        with pytest.raises(Interrupted):
            await training
        through = work.lease.trained_through
        work.lease.renew([range(100)])
        found = trainer.samples, through, work.lease.take(4)
        threads.close()
    return found


def test_a_pause_amid_a_micro_batch_has_no_sample_trained_twice(tmp_path: Path) -> None:
    """The gradient has what the leader has trained, so its positions do not come again."""
    samples, through, after = played(tmp_path, pausing, 2)[0]
    assert samples == 2
    assert through == 3
    assert after == [4, 5, 6, 7]


def dying(ranks: Ranks) -> Any:
    try:
        ranks.total(1)  # no rank leaves this before all have met
        if ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return ranks.answers() if ranks.rank == 0 else ranks.hear()
    except RankLost as error:
        return str(error)


def test_the_others_hear_that_one_has_died(tmp_path: Path) -> None:
    found = played(tmp_path, dying, 3)
    assert found.keys() == {0, 2}
    assert "this node is of 3 processes, and another one has ended" in found[0]
    assert "the first one, which leads it, has ended" in found[2]


@pytest.mark.parametrize(
    "place", [{}, {"MASTER_ADDR": "127.0.0.1"}, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "70000"}]
)
def test_a_launch_without_a_meeting_place_is_refused(monkeypatch: pytest.MonkeyPatch, place: dict[str, str]) -> None:
    numbers = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (numbers | place).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"MASTER_ADDR:MASTER_PORT, .* is no place"):
        launch()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert launch() == Launch(0, 2, 0, 2)


@pytest.mark.parametrize("missing", [absent, dying_amid])
def test_the_others_do_not_wait_long_for_one_that_they_cannot_meet(tmp_path: Path, missing: Missing) -> None:
    results = CONTEXT.SimpleQueue()
    lost = CONTEXT.Process(target=missing, args=(tmp_path / "place", 1, 3))
    others = [CONTEXT.Process(target=_meet, args=(tmp_path / "place", rank, 3, results)) for rank in (0, 2)]
    found = joined([lost, *others], results)
    assert "this node is of 3 processes, and another one has ended or cannot be reached" in found[0]
    assert "the first one, which leads it, has ended or cannot be reached" in found[2]
