"""A node that trains on looks ahead by all of its contributions that its replica does not hold yet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.small import random_replica, random_votes, small_contract
from support.small_trainer import small_trainer
from thinwire_node.exchange.port import AnnouncedRound, SealedUpdate
from thinwire_node.star.trainer import Trainer
from thinwire_node.star.work import Work
from thinwire_node.storage.state import NodeState
from thinwire_node.training.threads import Threads, WorkerThread
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Votes, merge
from thinwire_proto.wire.codec import decode_votes
from thinwire_proto.wire.rows import Counted, Row

STEP = 20
NONCE = 5


class Swarm:
    """One node with its real trainer, and the swarm's replica."""

    def __init__(self, folder: Path) -> None:
        schedule = {"learning_rate": 0.01, "steps": 100}
        rounds = {"pace": "clock", "base_age_max": 2, "samples": 4}
        self.contract = small_contract(schedule=schedule, round=rounds)
        replica = random_replica(self.contract, step=STEP)
        self.replica = replica.clone()
        self.trainer: Trainer = small_trainer(self.contract, replica)
        self.state = NodeState(folder)
        threads = Threads(WorkerThread("compute"), WorkerThread("saver"), WorkerThread("journal"))
        self.work = Work(self.contract, self.state, self.trainer, threads, time.monotonic, None)
        self.work.lease.renew([range(0, 100)])

    async def contribute(self, step: int) -> tuple[bytes, Votes]:
        """The node trains, and contributes to the round of this step."""
        await self.work.train(4)
        nonces = (NONCE, NONCE, NONCE)
        round_ = AnnouncedRound(
            term=1, number=step, step=step, deadline=1e9, k=8, nonces=nonces, lease=(), upcoming=(), evaluate=()
        )
        contribution = await self.work.contribution(round_, round_.k)
        assert contribution is not None
        return contribution.name, decode_votes(contribution.payload, self.replica.layout, 8)

    async def update(self, *counted: tuple[bytes, Votes]) -> None:
        """The next update reaches the node: of these contributions, and of another node's."""
        replica = self.replica
        update = next_update(replica, random_votes(replica.layout, 8, seed=1), *(votes for _, votes in counted))
        names = tuple(Counted(self.state.node_id, name, 1, 4) for name, _ in counted)
        fingerprint = replica.fingerprint(NONCE)
        row = Row(replica.step, replica.step, 1, NONCE, fingerprint, bytes(32), 1, names, replica.head)
        replica.apply(update, row.hash)
        await self.work.apply(SealedUpdate(row, update, 1, replica.step))

    def stands_on(self, *votes: Votes) -> bool:
        """Whether the node trains on the swarm's replica after updates of these votes alone, to 1/20 of a step."""
        expected = self.replica.clone()
        close = learning_rate(self.contract.schedule, expected.step) / 20
        for one in votes:
            expected.apply(next_update(expected, one), b"")
        model = self.trainer._compute.parameters
        far = [(model[name] - tensor).abs() > close for name, tensor in expected.tensors.items()]
        return int(torch.stack([one.sum() for one in far]).sum()) < 0.01 * sum(one.numel() for one in far)


def next_update(replica: Replica, *votes: Votes) -> Update:
    """The update that the coordinator would merge from these votes."""
    schedule, step = replica.contract.schedule, replica.step
    merged = merge([(one, 1) for one in votes], replica.layout.components)
    return Update(step, learning_rate(schedule, step), decay(schedule, step), merged)


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    swarm = Swarm(tmp_path)
    yield swarm
    swarm.work.close()


def test_a_node_looks_ahead_by_each_contribution_that_its_replica_lacks(swarm: Swarm) -> None:
    """The receipts arrive before the updates. An update takes its own contribution away, and leaves the later one."""

    async def play() -> None:
        first = await swarm.contribute(STEP)
        assert swarm.stands_on(first[1])
        await swarm.work.settle(True)
        second = await swarm.contribute(STEP + 1)
        assert swarm.stands_on(first[1], second[1])
        await swarm.work.settle(True)
        await swarm.update(first)
        assert swarm.stands_on(second[1])
        await swarm.update(second)
        assert swarm.stands_on()

    asyncio.run(play())
