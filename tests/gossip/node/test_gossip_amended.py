"""A node goes no further than the coordinator knows, so that it hears of an amendment before its iteration."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from support.cut_off import cut_off
from support.gossip_nodes import GossipNodes
from support.small import small_contract
from thinwire_common.within import Within
from thinwire_node.gossip.port import BeatAnswer
from thinwire_node.gossip.training import GossipTraining
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.exact.amendments import amended

STEPS, SAMPLES = 40, 2
CONTRACT = small_contract(
    exchange={"kind": "gossip", "topology": "complete", "codec": "int8", "patience_ms": 100},
    rule={"kind": "adamw", "samples": SAMPLES},
    schedule={"steps": STEPS, "warmup_steps": 1, "learning_rate": 1e-3},
    round={"pace": "clock"},
)


def allowing(answer: BeatAnswer, iterations: int) -> BeatAnswer:
    """The answer with a lease for so many iterations."""
    (lease,) = answer.lease
    return replace(answer, lease=(lease[: iterations * SAMPLES],))


async def comes_to(training: GossipTraining, iteration: int) -> None:
    async with Within(20):
        while training.work.saved.iteration < iteration:
            await asyncio.sleep(0.01)


async def test_a_node_that_takes_the_iteration_of_a_peer_waits_there_for_its_next_answer(tmp_path: Path) -> None:
    nodes = GossipNodes(tmp_path, CONTRACT, 2)
    ahead, behind = nodes.open(0), nodes.open(1)
    ahead.start()
    await ahead.take(allowing(nodes.answer(0), 20))
    await comes_to(ahead, 20)
    behind.start()
    await behind.take(allowing(nodes.answer(1), 4))
    async with Within(20):
        await behind.report_now.wait()
    before = behind.work.saved.iteration
    assert before > 4  # the iterations before are over
    assert behind.work.lease.left > 0
    await asyncio.sleep(0.5)
    assert behind.work.saved.iteration == before
    behind.reported(behind.report())
    await behind.take(replace(nodes.answer(1), lease=(behind.work.lease.runs[0][: 2 * SAMPLES],)))
    await comes_to(behind, before + 1)
    for number, training in enumerate((ahead, behind)):
        await nodes.close(number, training)


async def test_a_node_takes_an_amendment_with_its_answer_and_ends_where_that_says(tmp_path: Path) -> None:
    nodes = GossipNodes(tmp_path, CONTRACT, 2)
    shorter = amended(CONTRACT, Amendment(4, {"schedule.steps": 6}, id="shorter"))
    longer = amended(shorter, Amendment(5, {"schedule.steps": 9}, id="longer"))
    trainings = [nodes.open(number) for number in range(2)]
    for number, training in enumerate(trainings):
        training.start()
        await training.take(allowing(nodes.answer(number), 4))
    for number, training in enumerate(trainings):
        await comes_to(training, 4)
        training.reported(training.report())
        lease = (nodes.answer(number).lease[0][4 * SAMPLES :],)
        await training.take(replace(nodes.answer(number), lease=lease, contract=shorter))
        await training.take(replace(nodes.answer(number), lease=lease, contract=longer))
    for training in trainings:
        async with Within(20):
            await training.finished_event.wait()
        assert training.work.finished == training.work.iterations == 9
    for number, training in enumerate(trainings):
        await nodes.close(number, training)


async def test_an_amendment_that_is_cut_off_comes_again(tmp_path: Path) -> None:
    nodes = GossipNodes(tmp_path, CONTRACT, 2)
    training = nodes.open(0)
    work, shorter = training.work, amended(CONTRACT, Amendment(4, {"schedule.steps": 6}))
    await cut_off(work, work.amend(shorter), lambda: None)
    await work.amend(shorter)  # the next session begins
    assert (work.contract, work.member._settings.iterations) == (shorter, 6)
    await nodes.close(0, training)
