"""A node without a centre measures its parts of the held-out samples as an iteration begins, before it trains."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from support.gossip_lines import KEYS, Hub, HubLines
from support.small import CPU, random_replica, small_contract, small_corpus
from thinwire_node.exchange.gossip_port import BeatAnswer, Phase
from thinwire_node.exchange.port import EvaluationPart
from thinwire_node.options import NodeOptions
from thinwire_node.runtime import Clocks, SystemClock
from thinwire_node.session.blob_fetcher import BlobFetcher
from thinwire_node.session.evaluation import Evaluation
from thinwire_node.session.gossip.opening import open_training
from thinwire_node.session.prefetch import Prefetch
from thinwire_node.session.record import Record
from thinwire_node.storage.gossip_journal import GossipJournal
from thinwire_node.storage.state import NodeState
from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.gradient import named_views
from thinwire_node.training.threads import Threads, WorkerThread
from thinwire_proto.data.text import CorpusText
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.gossip.assignment import Assignment
from thinwire_proto.task import Stateless, task_of

AT, SPREAD = 3, 6
CONTRACT = small_contract(
    exchange={"kind": "gossip", "topology": "complete", "codec": "int8", "patience_ms": 600_000},
    rule={"kind": "adamw", "samples": 2},
    schedule={"steps": 10, "warmup_steps": 1, "learning_rate": 1e-3},
    round={"pace": "clock"},
)


@dataclass
class Losses:
    """Takes what a node measures, in the coordinator's place."""

    taken: list[tuple[EvaluationPart, float]] = field(default_factory=list)

    async def evaluated(self, part: EvaluationPart, loss: float) -> None:
        self.taken.append((part, loss))


async def trained(
    folder: Path, iterations: int, *parts: EvaluationPart
) -> tuple[list[tuple[EvaluationPart, float]], bytes]:
    """What a single node has measured after so many iterations, and its parameters."""
    state, clock, record, losses = NodeState(folder), SystemClock(), Record(), Losses()
    threads = Threads(WorkerThread("c"), WorkerThread("s"), WorkerThread("j"))
    data = CorpusText(small_corpus(), CONTRACT)
    training = open_training(
        CONTRACT,
        random_replica(CONTRACT),
        None,
        data,
        TorchCompute(task_of(CONTRACT.model), CPU),
        GossipJournal(state, CONTRACT.hash),
        threads,
        lambda listener: HubLines(Hub(), KEYS[0].public, listener),
        record,
        NodeOptions("", 2, iterations),
        Clocks(clock.now, clock.asleep_s),
    )
    fetcher = BlobFetcher(state.blobs, (), None, random.Random(0), record)  # type: ignore[arg-type]
    evaluation = Evaluation(losses, training.work, data, fetcher.fetch, training.wake)  # type: ignore[arg-type]
    training.use(Prefetch(data, fetcher, record, clock.now, training.wake), evaluation)
    besides = [asyncio.ensure_future(work) for work in (evaluation.prepare(), evaluation.report())]
    await training.take(BeatAnswer(Phase.TRAINING, "", 1.0, measure_at=AT, evaluate=parts))
    await asyncio.sleep(0)  # the parts need no data that are not here
    running = training.start()
    alone = Assignment(1, 0, 0, ({},), {})
    await training.take(BeatAnswer(Phase.TRAINING, "", 1.0, (range(100),), alone, measure_at=AT, evaluate=parts))
    await running
    x = await training.work.parameters()
    await asyncio.sleep(0)  # reports what was measured last
    for task in besides:
        task.cancel()
    await training.stop()
    training.close()
    return losses.taken, x


def loss_at(x: bytes, part: EvaluationPart) -> float:
    data, layout = CorpusText(small_corpus(), CONTRACT), layout_of(CONTRACT.parameters)
    (found,) = data.held_out_sets()
    samples = found.spread(part.spread)[part.start : part.start + part.count]
    tensors = named_views(layout, torch.from_numpy(np.frombuffer(x, "<f4").copy()))
    with torch.no_grad():
        return float(Stateless(task_of(CONTRACT.model).model("cpu")).loss(tensors, data.held_out(part.name, samples)))


def part(start: int, count: int, step: int = AT) -> EvaluationPart:
    return EvaluationPart(step, "held_out", SPREAD, start, count)


def test_a_part_is_measured_on_the_parameters_with_which_its_iteration_begins(tmp_path: Path) -> None:
    """Five samples are more than a micro-batch of two."""
    wanted = part(1, 5)
    ((measured, loss),), _ = asyncio.run(trained(tmp_path / "on", AT + 2, wanted))
    nothing, x = asyncio.run(trained(tmp_path / "up to there", AT))
    assert nothing == []
    assert measured == wanted
    assert loss == pytest.approx(loss_at(x, wanted), rel=1e-5)


def test_measuring_changes_no_parameter(tmp_path: Path) -> None:
    _, without = asyncio.run(trained(tmp_path / "without", AT + 2))
    taken, x = asyncio.run(trained(tmp_path / "with", AT + 2, part(0, 2), part(2, 4)))
    assert len(taken) == 2
    assert x == without


@pytest.mark.parametrize("wrong", [part(0, SPREAD, step=AT + 10), part(0, 100_000), part(0, 0), part(SPREAD, 1)])
def test_a_part_that_cannot_be_measured_is_passed_over(tmp_path: Path, wrong: EvaluationPart) -> None:
    taken, _ = asyncio.run(trained(tmp_path, AT + 2, wrong, part(0, 2)))
    assert [one for one, _ in taken] == [part(0, 2)]
