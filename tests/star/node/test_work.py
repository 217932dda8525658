"""A node's work: its saves survive the end of the tasks that wait for them, it looks ahead, and it is amended."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.cut_off import cut_off
from support.small import random_replica, random_votes, small_contract
from support.small_trainer import small_trainer
from thinwire_node.exchange.port import AnnouncedRound, SealedUpdate
from thinwire_node.star.rules import shapes_kept
from thinwire_node.star.saver import Passing, Saver
from thinwire_node.star.work import Work
from thinwire_node.storage.state import Head, KeptMomentum, NodeState, Written
from thinwire_node.training.failures import Interrupted
from thinwire_node.training.threads import NodeJob, Threads, WorkerThread
from thinwire_proto.contract import Contract
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.errors import ReplicaError
from thinwire_proto.exact.amendments import amended
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Votes, merge
from thinwire_proto.wire.codec import decode_votes
from thinwire_proto.wire.rows import Counted, Row

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


class FullState(NodeState):
    """A state directory on a disk without room while `is_full` is set."""

    is_full = False

    def write_momentum(self, kept: KeptMomentum) -> Written:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write_momentum(kept)


STEP, NONCE = 20, 5
SAVE_IS_DUE = 1e6  # seconds after which any state is saved


class Contributing:
    """A node whose contributions are all counted."""

    def __init__(self, state: NodeState, threads: Threads) -> None:
        rounds = {"pace": "clock", "base_age_max": 2, "samples": 4}
        self.contract = small_contract(schedule={"learning_rate": 0.01, "steps": 100}, round=rounds)
        self.trainer = small_trainer(self.contract, random_replica(self.contract, step=STEP))
        self.now, self._number = 0.0, 0
        self.state = state
        self.work = Work(self.contract, state, self.trainer, threads, lambda: self.now, None)
        self.work.lease.renew([range(100)])

    async def contribute(self, step: int = STEP) -> tuple[bytes, Votes]:
        """Train four samples and contribute them to the round of this step."""
        self._number += 1
        await self.work.train(4)
        round_ = AnnouncedRound(
            term=1, number=self._number, step=step, deadline=1e9, k=8, nonces=3 * (NONCE,), lease=(), upcoming=(),
            evaluate=(),
        )  # fmt: skip
        contribution = await self.work.contribution(round_, round_.k)
        assert contribution is not None
        votes = decode_votes(contribution.payload, self.trainer.replica.layout, 8)
        if step == STEP:
            await self.work.settle(True)
        return contribution.name, votes

    @property
    def kept(self) -> KeptMomentum | None:
        return self.state.momentum(shapes_kept(self.contract))


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


async def test_names_of_what_is_sent_during_a_save_stay_until_the_next_one(tmp_path: Path, threads: Threads) -> None:
    """Their contributions are not in the momentum that the save has written."""
    state = SlowState(tmp_path / "node")
    saver, replica = Saver(state, threads, time.monotonic, round_s=1.0), random_replica(small_contract())
    begun = asyncio.Event()

    async def write() -> Passing:
        passing = saver.write(replica, KeptMomentum({"momentum": torch.ones(2)}, 7, None))
        begun.set()
        return passing

    await saver.note_sent(b"before".ljust(32))
    saver.begin(write)
    await begun.wait()
    await saver.note_sent(b"during".ljust(32))
    state.may_write.set()
    await saver.finish()
    assert state.sent() == [b"during".ljust(32)]
    state.close()


async def test_a_save_that_is_cancelled_goes_on_and_the_next_one_waits_for_it(tmp_path: Path, threads: Threads) -> None:
    """As where a node is told to stop on a slow disk."""
    state = SlowState(tmp_path / "node")
    saver, replica = Saver(state, threads, time.monotonic, round_s=1.0), random_replica(small_contract())

    async def write(trained_through: int) -> Passing:
        return saver.write(replica, KeptMomentum({"momentum": torch.ones(2)}, trained_through, None))

    session = asyncio.ensure_future(saver.save(lambda: write(7)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    session.cancel()
    with pytest.raises(asyncio.CancelledError):
        await session
    last = asyncio.ensure_future(saver.save(lambda: write(9)))
    await asyncio.sleep(0)
    state.may_write.set()
    await last
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


async def with_a_failed_save(folder: Path, threads: Threads) -> tuple[FullState, Contributing]:
    """A node whose save in the background has failed, because its disk is full."""
    state = FullState(folder / "node")
    node = Contributing(state, threads)
    state.is_full, node.now = True, SAVE_IS_DUE
    await node.contribute()
    with pytest.raises(OSError, match="No space left"):
        await node.work.finish_jobs()
    return state, node


async def test_the_last_save_is_tried_after_one_in_the_background_has_failed(tmp_path: Path, threads: Threads) -> None:
    state, node = await with_a_failed_save(tmp_path, threads)
    node.now += SAVE_IS_DUE
    with pytest.raises(OSError, match="No space left"):
        await node.contribute()  # which ends the node
    with pytest.raises(OSError, match="No space left"):
        await node.work.save()
    state.is_full = False
    await node.work.save()
    assert node.kept is not None
    assert node.kept.trained_through == node.work.trained_through_at_extraction
    assert state.sent() == []
    state.close()


async def test_a_node_that_leaves_amid_a_resync_saves_its_momentum(tmp_path: Path, threads: Threads) -> None:
    state = NodeState(tmp_path / "node")
    node = Contributing(state, threads)
    await node.work.save()
    await node.contribute()
    node.work.replica = None  # `Bootstrap.drop_replica`
    await node.work.save()
    assert node.kept is not None
    assert node.kept.trained_through == node.work.trained_through_at_extraction == 3
    for name, tensor in node.work.trainer.rule.state().items():
        assert node.kept.momentum[name].equal(tensor), name
    assert state.sent() == []
    replica = state.replica(node.contract)
    assert replica is not None  # the one before: no newer than the momentum, so what was sealed since is replayed
    assert replica.step == STEP
    state.close()


async def test_a_node_looks_ahead_by_each_contribution_that_its_replica_lacks(tmp_path: Path, threads: Threads) -> None:
    """The receipts arrive before the updates. An update takes its own contribution away, and leaves the later one."""
    node = Contributing(NodeState(tmp_path / "node"), threads)
    replica: Replica = node.trainer.replica.clone()

    async def update(name: bytes, votes: Votes) -> None:
        """The next update reaches the node: of this contribution, and of another node's."""
        sealed = next_update(replica, random_votes(replica.layout, 8, seed=1), votes)
        counted = (Counted(node.state.node_id, name, 1, 4),)
        row = Row(replica.step, replica.step, 1, NONCE, replica.fingerprint(NONCE), bytes(32), 1, counted, replica.head)
        replica.apply(sealed, row.hash)
        await node.work.apply(SealedUpdate(row, sealed, 1, replica.step))

    def stands_on(*votes: Votes) -> bool:
        """Whether the node trains on the swarm's replica after updates of these votes alone, to 1/20 of a step."""
        expected = replica.clone()
        close = learning_rate(node.contract.schedule, expected.step) / 20
        for one in votes:
            expected.apply(next_update(expected, one), b"")
        model = node.trainer._compute.parameters
        far = [(model[name] - tensor).abs() > close for name, tensor in expected.tensors.items()]
        return sum(int(one.sum()) for one in far) < 0.01 * sum(one.numel() for one in far)

    first = await node.contribute()
    assert stands_on(first[1])
    second = await node.contribute(STEP + 1)
    assert stands_on(first[1], second[1])
    await node.work.settle(True)
    await update(*first)
    assert stands_on(second[1])
    await update(*second)
    assert stands_on()
    await node.work._saver.finish()
    node.work.close()


async def test_the_name_of_a_contribution_is_on_disk_before_it_can_be_sent(tmp_path: Path, threads: Threads) -> None:
    node = Contributing(NodeState(tmp_path / "node"), threads)
    names = [(await node.contribute())[0] for _ in range(2)]
    assert node.state.sent() == names  # a process that is killed now tells the coordinator of both
    node.work.close()


async def test_what_is_not_counted_is_in_the_momentum_again(tmp_path: Path, threads: Threads) -> None:
    node = Contributing(NodeState(tmp_path / "node"), threads)
    momentum = node.trainer.rule.state()["coefficients"]
    await node.contribute(STEP + 1)
    pending = node.work.pending
    assert pending is not None
    components, left = pending.sent.components, momentum.clone()
    await node.work.settle(False)
    put_back = momentum - left
    assert torch.allclose(put_back[components], pending.sent.values, atol=1e-6)
    assert int(torch.count_nonzero(put_back)) == len(components)
    assert node.work.pending is None
    node.work.close()


async def test_samples_of_a_micro_batch_that_was_interrupted_are_trained_again(
    tmp_path: Path, threads: Threads
) -> None:
    node = Contributing(NodeState(tmp_path / "node"), threads)
    await node.work.train(4)
    node.work.interrupt()
    with pytest.raises(Interrupted):
        await node.work.train(4)
    assert (node.work.lease.trained_through, node.trainer.samples) == (3, 4)
    node.trainer.resume()
    node.work.lease.renew([range(100)])  # the next session
    await node.work.train(4)
    assert (node.work.lease.trained_through, node.trainer.samples) == (7, 8)
    node.work.close()


async def test_a_node_that_rests_keeps_all_of_its_gradient_in_the_momentum(tmp_path: Path, threads: Threads) -> None:
    rested, other = (Contributing(NodeState(tmp_path / name), threads) for name in ("rested", "other"))
    for node in (rested, other):
        await node.work.train(4)
    await rested.work.rest()
    sent, *_ = other.trainer.extract(1)
    expected = other.trainer.rule.state()["coefficients"].clone()
    expected[sent.components] += sent.values
    assert rested.kept is not None
    assert torch.allclose(rested.kept.momentum["coefficients"], expected, atol=1e-6)
    assert rested.kept.trained_through == 3
    for node in (rested, other):
        node.work.close()


async def test_a_row_of_another_history_or_other_parameters_changes_nothing(tmp_path: Path, threads: Threads) -> None:
    node = Contributing(NodeState(tmp_path / "node"), threads)
    replica: Replica = node.trainer.replica.clone()
    sealed, fingerprint = next_update(replica, random_votes(replica.layout, 8, seed=1)), replica.fingerprint(NONCE)
    right = Row(STEP, STEP, 1, NONCE, fingerprint, bytes(32), 1, (), replica.head)
    for wrong, error in (
        (replace(right, previous=b"other" + replica.head[5:]), "does not follow"),
        (replace(right, step=STEP + 1), "does not follow"),
        (replace(right, fingerprint=fingerprint ^ 1), "parameters differ"),
    ):
        with pytest.raises(ReplicaError, match=error):
            await node.work.apply(SealedUpdate(wrong, sealed, 1, STEP))
    assert (node.work.replica, node.trainer.replica.step) == (node.trainer.replica, STEP)
    assert node.trainer.replica.state_hash() == replica.state_hash()
    await node.work.apply(SealedUpdate(right, sealed, 1, STEP))
    assert (node.trainer.replica.step, node.trainer.replica.head) == (STEP + 1, right.hash)
    await node.work._saver.finish()
    node.work.close()


def next_update(replica: Replica, *votes: Votes) -> Update:
    """The update that the coordinator would merge from these votes."""
    schedule, step = replica.contract.schedule, replica.step
    merged = merge([(one, 1) for one in votes], replica.layout.components)
    return Update(step, learning_rate(schedule, step), decay(schedule, step), merged)


async def test_an_amendment_waits_for_what_is_computed_and_comes_again_if_it_is_cut_off(
    tmp_path: Path, threads: Threads
) -> None:
    contract, taken = small_contract(), list[Contract]()
    trainer = small_trainer(contract, random_replica(contract))
    work = Work(contract, NodeState(tmp_path), trainer, threads, time.monotonic, None, taken.append)
    slower = amended(contract, Amendment(0, {"schedule.learning_rate": 1e-5}))

    def nothing_is_taken() -> None:
        assert not taken  # a pass is divided as the contract before allows, to its end
        assert work.contract == contract

    await cut_off(work, work.amend(slower), nothing_is_taken)
    await work.amend(slower)  # the next session begins
    assert work.contract == trainer._contract == slower
    assert taken == [slower]
    work.close()
