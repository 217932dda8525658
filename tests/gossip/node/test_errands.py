"""Confirmations of peers in any number, wrong ones, and faults beside the iterations, which end the node."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.gossip_nodes import GossipNodes
from support.small import small_contract
from thinwire_node.gossip.training import GossipTraining
from thinwire_node.training.threads import NodeJob
from thinwire_proto.gossip.peer import first_sequence

NODES, PEER = 3, 1
NOTHING = first_sequence(1)
"""The sequence number before the first message of an edge since topology 1."""
NEVER_SENT = NOTHING + 1000
CONTRACT = small_contract(
    exchange={"kind": "gossip", "topology": "complete", "codec": "int8", "patience_ms": 600_000},
    rule={"kind": "adamw", "samples": 2},
    schedule={"steps": 10, "warmup_steps": 1, "learning_rate": 1e-3},
    round={"pace": "clock"},
)


@asynccontextmanager
async def begun(folder: Path) -> AsyncIterator[GossipTraining]:
    """A node that has sent its peers its first message, and waits for theirs."""
    nodes = GossipNodes(folder, CONTRACT, NODES)
    training = nodes.open(0)
    await nodes.start(0, training)
    while training.work.finished < 1 and not training.doing.startswith("waiting: for messages"):
        await asyncio.sleep(0.01)
    yield training
    await nodes.close(0, training)


@asynccontextmanager
async def busy(training: GossipTraining) -> AsyncIterator[None]:
    """The compute thread takes nothing during the block. All errands are done after it."""
    go_on = threading.Event()
    blocked = training.work.run(NodeJob.EXCHANGE, go_on.wait)
    yield
    go_on.set()
    await blocked
    while training.errands:
        await asyncio.sleep(0)


async def test_any_number_of_confirmations_takes_one_job_for_each_peer(tmp_path: Path) -> None:
    async with begun(tmp_path) as training:
        async with busy(training):
            for _ in range(10_000):
                training.neighbours.confirmed(PEER, NOTHING)
                training.neighbours.confirmed(PEER + 1, NOTHING)
            await asyncio.sleep(0)
            assert len(training.errands) == 2
            assert training.work.jobs <= 3
        training.errands.check()


async def test_a_wrong_confirmation_leaves_the_peer_out_and_the_node_goes_on(tmp_path: Path) -> None:
    async with begun(tmp_path) as training:
        training.neighbours.confirmed(PEER, NEVER_SENT)
        while training.errands:
            await asyncio.sleep(0)
        assert training.report().missed == (PEER,)
        training.errands.check()
        training.neighbours.confirmed(PEER + 1, NOTHING)
        while training.errands:
            await asyncio.sleep(0)
        assert training.report().missed == (PEER,)


async def test_what_an_errand_raises_ends_iterations_and_session_with_this_error_and_every_later_one(
    tmp_path: Path,
) -> None:
    async def fails() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with begun(tmp_path) as training:
        session = asyncio.ensure_future(training.errands.failure())
        await asyncio.sleep(0)
        training.errands.check()
        training.errands.begin(fails())
        with pytest.raises(OSError, match="No space left"):
            await asyncio.wait_for(session, 1.0)
        with pytest.raises(OSError, match="No space left"):
            training.errands.check()
        with pytest.raises(asyncio.CancelledError):
            await training.start()
