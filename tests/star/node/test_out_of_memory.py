"""Memory that runs out at any allocation: the round goes on, and nothing is lost, counted twice or different."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import support.small
from support.small import random_replica, random_sized_votes, random_votes, small_contract
from support.small_trainer import small_trainer
from thinwire_node.exchange.port import AnnouncedRound, SealedUpdate
from thinwire_node.star.trainer import Trainer
from thinwire_node.star.work import Work
from thinwire_node.storage.state import NodeState
from thinwire_node.training.threads import NodeJob, Threads
from thinwire_proto.contract import Contract
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import WholeVotes
from thinwire_proto.out_of_memory import TRIES_MAX, TooLittleMemory
from thinwire_proto.wire.rows import Counted, Row

MODEL = {"width": 64, "layers": 2, "heads": 2, "hidden": 96, "context": 32}
NO_ROOM = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 17179869184 bytes"


class RunsOut(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets allocations fail, from number `first` on, `times` in a row. seen: how many there were."""

    def __init__(self, first: int, times: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.failing = range(first, first + times)
        self.seen: int = 0
        self.failed: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(one.alias_info is None and str(one.type) == "Tensor" for one in func._schema.returns):
            self.seen += 1
            if self.seen - 1 in self.failing:
                self.failed += 1
                raise torch.OutOfMemoryError(NO_ROOM)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A dispatch mode sees the operations of one thread. Nothing older is collected, which takes most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(before)


def contract_of(rule: str, **demo: object) -> Contract:
    given: dict[str, Any] = {"rule": {"kind": rule}} if rule != "demo" else {}
    return small_contract(model=MODEL, demo=demo, **given)


def trainer_of(contract: Contract) -> Trainer:
    return small_trainer(contract, random_replica(contract))


def learned(trainer: Trainer) -> dict[str, Tensor]:
    """A copy of all that a rule has learned."""
    rule = trainer.rule
    tensors = {**(rule.sums or {}), **(rule.offset or {}), **{f"state {key}": of for key, of in rule.state().items()}}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def allocations(work: Callable[[], object]) -> int:
    """The number of allocations that work makes."""
    with RunsOut(-1) as memory:
        work()
    count: int = memory.seen
    assert count > 50
    return count


def test_a_micro_batch_that_runs_out_of_memory_anywhere_adds_its_gradient_once() -> None:
    contract = contract_of("demo")
    plain = trainer_of(contract)
    plain.micro_batch(range(8))
    expected, size = learned(plain), plain.samples
    ready = trainer_of(contract)
    for number in range(0, allocations(lambda: ready.micro_batch(range(8))), 11):
        trainer = trainer_of(contract)
        with RunsOut(number) as memory:
            trainer.micro_batch(range(8))
        assert memory.failed
        assert trainer.samples == size == 8
        assert trainer.dropped == 0
        for name, total in learned(trainer).items():
            torch.testing.assert_close(total, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ["local_adamw", "local_muon"])
def test_local_steps_that_run_out_of_memory_are_smaller_and_none_is_half_taken(rule: str) -> None:
    contract = contract_of(rule)

    whole, in_halves, ready = (trainer_of(contract) for _ in range(3))
    whole.micro_batch(range(4))
    for first in (0, 2):
        in_halves.micro_batch(range(first, first + 2))
    for number in range(0, allocations(lambda: ready.micro_batch(range(4))), 23):
        trainer = trainer_of(contract)
        with RunsOut(number) as memory:
            trainer.micro_batch(range(4))
        assert memory.failed
        assert trainer.samples == 4
        like = whole if trainer._compute.micro_batch.samples == 8 else in_halves
        found, expected = learned(trainer), learned(like)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


class AtOnce:
    """A thread that runs each job when it is queued."""

    def run(self, job: NodeJob, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done.set_result(work(*arguments))
        return done

    def close(self) -> None:
        pass


@dataclass
class Round:
    """The outcome of a round for a node: the bytes that it sent, its replica's fingerprint, and what its rule holds."""

    payload: bytes
    fingerprint: int
    learned: dict[str, Tensor]
    ahead: dict[str, Tensor]


def round_of(contract: Contract, folder: Path, counted: bool, memory: RunsOut) -> Round:
    """A round of one node: it trains, contributes, learns the outcome and applies the update. Memory runs out in all
    but the training."""
    replica = random_replica(contract)
    trainer = small_trainer(contract, replica.clone())
    threads = Threads(AtOnce(), AtOnce(), AtOnce())
    work = Work(contract, NodeState(folder), trainer, threads, time.monotonic, None)
    work.lease.renew([range(100)])

    async def play() -> Round:
        await work.train(2)
        announced = AnnouncedRound(
            term=1, number=0, step=0, deadline=1e9, k=contract.demo.k, nonces=(5,), lease=(), upcoming=(), evaluate=()
        )
        with memory:
            contribution = await work.contribution(announced, announced.k)
            assert contribution is not None
            await work.settle(counted)
        update = update_of(contract, replica.layout)
        names = (Counted(bytes(32).hex(), contribution.name, 1, 2),) if counted else ()
        row = Row(0, 0, 1, 5, replica.fingerprint(5), bytes(32), 1, names, replica.head)
        with memory:
            await work.apply(SealedUpdate(row, update, 1, 0))
        await work.finish_jobs()
        await work._saver.finish()
        assert work.replica is not None
        ahead = {name: tensor.clone() for name, tensor in trainer._compute.parameters.items()}
        return Round(contribution.payload, work.replica.fingerprint(9), learned(trainer), ahead)

    try:
        return asyncio.run(play())
    finally:
        work.close()


def update_of(contract: Contract, layout: TileLayout) -> Update:
    """An update of two nodes' votes."""
    merger = merger_of(contract, layout, 0)
    for seed in (1, 2):
        if contract.demo.sends_whole_tiles:
            levels = torch.randint(-3, 4, (layout.components,), generator=torch.Generator().manual_seed(seed))
            codes = torch.full((layout.tiles,), 90, dtype=torch.uint8)
            merger.add(WholeVotes(levels.to(torch.int8).numpy(), codes.numpy(), 3), 2)
        else:
            votes = random_sized_votes if contract.demo.magnitude == "tile" else random_votes
            merger.add(votes(layout, contract.demo.k, seed), 2)
    return Update(0, 0.0078125, 0.9990234375, merger.merged())


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "put back"])
@pytest.mark.parametrize(
    ("rule", "demo"),
    [("demo", {}), ("demo", {"magnitude": "tile"}), ("local_muon", {}), ("merged_muon", {})],
    ids=["votes", "magnitudes", "local steps", "a merged step"],
)
def test_a_round_that_runs_out_of_memory_anywhere_gives_the_same_bits(
    rule: str, demo: dict[str, object], counted: bool, tmp_path: Path
) -> None:
    """From the extraction on: what is sent, the replica, and what the node keeps."""
    contract = contract_of(rule, **demo)
    round_of(contract, tmp_path / "first", counted, RunsOut(-1))  # makes what is made once in a process
    memory = RunsOut(-1)
    expected = round_of(contract, tmp_path / "plain", counted, memory)
    assert memory.seen > 30
    for number in range(0, memory.seen, 1 + memory.seen // 12):
        failing = RunsOut(number, 1 + number % (TRIES_MAX - 1))
        found = round_of(contract, tmp_path / str(number), counted, failing)
        assert failing.failed
        assert found.payload == expected.payload
        assert found.fingerprint == expected.fingerprint
        for name in ("learned", "ahead"):
            of_both = getattr(found, name), getattr(expected, name)
            assert all(torch.equal(of_both[0][key], tensor) for key, tensor in of_both[1].items()), (number, name)


def test_memory_that_is_short_for_good_ends_the_node_with_a_sentence() -> None:
    trainer = trainer_of(contract_of("demo"))
    with RunsOut(0, 1 << 30), pytest.raises(TooLittleMemory, match=r"can't allocate memory.*; end other programs"):
        trainer.micro_batch(range(8))


LIMITED = """
import resource
import sys
from pathlib import Path

import torch
from support.small import random_replica, small_contract
from support.small_trainer import small_trainer

torch.set_num_threads(1)
contract = small_contract(model={"width": 64, "layers": 24, "heads": 2, "hidden": 256, "context": 1024})
trainer = small_trainer(contract, random_replica(contract))
trainer.micro_batch(range(1))  # makes what is made once in a process
trainer.clear()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit = used + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
trainer.micro_batch(range(8))
trainer.extract(8)
print(trainer._compute.micro_batch.samples, trainer._compute.micro_batch.checkpoints, end="")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is of Linux")
@pytest.mark.parametrize(("room", "settles"), [(3 << 30, "8 False"), (250 << 20, "1 False"), (70 << 20, "1 True")])
def test_a_process_under_a_limit_of_the_system_settles_within_three_tries(room: int, settles: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(support.small.__file__).parents[1])}
    command = [sys.executable, "-c", LIMITED, str(room)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(settles)  # whether one sample needs checkpoints, what malloc keeps decides
    assert done.stderr.count("do not fit into memory") <= TRIES_MAX


@pytest.mark.parametrize("rule", ["demo", "local_adamw"])
def test_checkpoints_change_no_more_than_rounding(rule: str) -> None:
    contract = contract_of(rule)
    plain, checkpointing = trainer_of(contract), trainer_of(contract)
    checkpointing._compute.micro_batch.fit(8, checkpoints=True)
    for trainer in (plain, checkpointing):
        trainer.micro_batch(range(8))
    found = learned(checkpointing)
    for name, tensor in learned(plain).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)
