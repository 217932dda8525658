"""A node in a gossip run measures its parts of the held-out samples as an iteration begins, before it trains."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from support.gossip_nodes import GossipNodes
from support.small import small_contract, small_corpus
from thinwire_node.exchange.port import EvaluationPart
from thinwire_node.gossip.gradient import named_views
from thinwire_proto.data.text import CorpusText
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import task_of

AT, SPREAD = 3, 6
CONTRACT = small_contract(
    exchange={"kind": "gossip", "topology": "complete", "codec": "int8", "patience_ms": 600_000},
    rule={"kind": "adamw", "samples": 2},
    schedule={"steps": 10, "warmup_steps": 1, "learning_rate": 1e-3},
    round={"pace": "clock"},
)


async def trained(
    folder: Path, iterations: int, *parts: EvaluationPart
) -> tuple[list[tuple[EvaluationPart, float]], bytes]:
    """What a single node has measured after so many iterations, and its parameters."""
    nodes = GossipNodes(folder, CONTRACT, 1)
    training = nodes.open(0, iterations=iterations)
    measuring = asyncio.ensure_future(nodes.measure(0))
    answer = nodes.answer(0, measure_at=AT, evaluate=parts)
    await training.take(replace(answer, assignment=None, lease=()))
    await asyncio.sleep(0)  # the parts need no data that are not here
    running = training.start()
    await training.take(answer)
    await running
    x = await training.work.parameters()
    await asyncio.sleep(0)  # reports what was measured last
    measuring.cancel()
    await nodes.close(0, training)
    return nodes.measured, x


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
