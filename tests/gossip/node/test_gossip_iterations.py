"""The iterations of a node in a gossip run go on, and mix what their peers have mixed, also at the end."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.gossip_nodes import GossipNodes, _nowhere
from support.small import small_contract, small_corpus
from thinwire_common.within import Within
from thinwire_node.gossip.gradient import Gradient
from thinwire_node.gossip.training import GossipTraining
from thinwire_node.session.blob_fetcher import BlobFetcher
from thinwire_node.session.prefetch import Prefetch
from thinwire_node.training.lease import Lease
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_node.training.threads import NodeJob
from thinwire_proto.contract import Contract
from thinwire_proto.data.text import CorpusText
from thinwire_proto.gossip.iteration import Turn
from thinwire_proto.gossip.message import Message

STEPS, SAMPLES = 3, 2
PATIENCE_S = 2.0


def contract_with(patience_s: float) -> Contract:
    return small_contract(
        exchange={"kind": "gossip", "topology": "complete", "codec": "int8", "patience_ms": round(1000 * patience_s)},
        rule={"kind": "adamw", "samples": SAMPLES},
        schedule={"steps": STEPS, "warmup_steps": 1, "learning_rate": 1e-3},
        round={"pace": "clock"},
    )


CONTRACT = contract_with(0.5)


class ReadableTo(Prefetch):
    """Data of which nothing from a position on can be read."""

    end = SAMPLES

    def pass_over(self, lease: Lease) -> None:
        while lease.left and lease.head(1)[0].start >= self.end:
            lease.take(1)
            self._note_skipped(1)


async def test_an_iteration_whose_lease_cannot_be_read_ends_and_is_reported(tmp_path: Path) -> None:
    """The coordinator grants no more before it hears of the samples that were passed over."""
    nodes = GossipNodes(tmp_path, CONTRACT, 2)
    one, other = nodes.open(0), nodes.open(1)
    fetcher = BlobFetcher(nodes.states[0].blobs, (), _nowhere, random.Random(0), one._record)
    data = CorpusText(small_corpus(), CONTRACT)
    one.use(ReadableTo(data, fetcher, one._record, time.monotonic, one.wake), one._evaluation)  # type: ignore[arg-type]
    whole = nodes.answer(0).lease[0]
    for number, training in enumerate((one, other)):
        await nodes.start(number, training)
    async with Within(20):
        while one.report().report.iteration < 2:  # the compute thread is ahead of what the next beat tells
            await asyncio.sleep(0.01)
    assert one.report().report.trained_through == whole[-1]
    assert one.work.saved.samples == SAMPLES
    for number, training in enumerate((one, other)):
        await nodes.close(number, training)


async def test_a_gradient_that_is_not_whole_begins_anew_after_the_lease_was_given_back(tmp_path: Path) -> None:
    """As in a pause: what the gradient had of the lease goes to others, or to this node once more."""
    nodes = GossipNodes(tmp_path, CONTRACT, 2)
    one, other = nodes.open(0), nodes.open(1)
    one._record.at_once = MicroBatch(1)
    begun, go_on, gradient = threading.Event(), threading.Event(), one.work._gradient
    begin, add, mean = gradient.begin, gradient.add, gradient.mean
    taken: list[int] = []
    whole: list[list[int]] = []

    def note(positions: Sequence[int]) -> None:
        taken.extend(positions)
        begun.set()
        assert go_on.wait(20)
        add(positions)

    def forget() -> None:
        taken.clear()
        begin()

    def finish() -> Gradient:
        whole.append([*taken])
        return mean()

    gradient.begin, gradient.add, gradient.mean = forget, note, finish  # type: ignore[method-assign]
    for number, training in enumerate((one, other)):
        await nodes.start(number, training)
    while not begun.is_set():
        await asyncio.sleep(0.01)
    one.give_back()
    go_on.set()
    await asyncio.sleep(0.1)
    assert one.work.lease.trained_through is None
    assert not whole
    again = range(5000, 5000 + STEPS * SAMPLES)
    await one.take(replace(nodes.answer(0), lease=(again,)))
    async with Within(20):
        while not one.finished_event.is_set():
            await asyncio.sleep(0.01)
    assert [position for each in whole for position in each] == [*again]
    assert one.work.saved.trained_through == again[-1]
    for number, training in enumerate((one, other)):
        await nodes.close(number, training)


async def test_messages_right_behind_the_end_of_the_patience_are_all_mixed(tmp_path: Path) -> None:
    """In the last iteration, each makes a decision of its own. Their peers have mixed the same turns."""
    nodes = GossipNodes(tmp_path, contract_with(PATIENCE_S), 3)
    trainings = [nodes.open(number) for number in range(3)]
    late = trainings[0]
    held: list[tuple[int, Message]] = []
    take = late.neighbours.received

    def hold(peer: int, message: Message) -> None:
        if message.iteration == STEPS - 1:
            held.append((peer, message))
        else:
            take(peer, message)

    late.neighbours.received = hold  # type: ignore[method-assign]
    mixed = mixed_turns(late)
    for number, training in enumerate(trainings):
        await nodes.start(number, training)
    async with Within(20):
        while late.work.view.iteration < STEPS - 1 or late.work.view.deadline is None or len(held) < 2:
            await asyncio.sleep(0.01)
    go_on = threading.Event()
    late.work.run(NodeJob.EXCHANGE, go_on.wait)
    await asyncio.sleep(2 * PATIENCE_S)  # the end of the patience waits for that job now
    for peer, message in held:
        take(peer, message)
    go_on.set()
    async with Within(20):
        while len([turn for turn in mixed if turn.iteration == STEPS - 1]) < 2:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert sorted(turn.peer for turn in mixed if turn.iteration == STEPS - 1) == [1, 2]
    for number, training in enumerate(trainings):
        await nodes.close(number, training)


def mixed_turns(training: GossipTraining) -> list[Turn]:
    """The turns that a node mixes from now on."""
    found: list[Turn] = []
    chain = training.work.member._chain
    extend = chain.extend

    def note(turn: Turn, *hashes: Any) -> Any:
        found.append(turn)
        return extend(turn, *hashes)

    chain.extend = note  # type: ignore[method-assign]
    return found
