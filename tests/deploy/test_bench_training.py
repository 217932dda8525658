"""`make bench` measures a node's training beside AdamW's, on the same batches and with real updates."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path

import pytest

from bench.speed.training import MICRO_BATCHES, PlainTraining, measure
from thinwire_node.star.work import Work
from thinwire_proto.contract.models.llama import LlamaSpec

TINY = LlamaSpec(vocabulary=128, width=64, layers=1, heads=1, kv_heads=1, hidden=64, context=16)


def test_node_and_adamw_train_on_the_same_batches_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, plain, works = [], [], []
    train, micro_batch = Work.train, PlainTraining.micro_batch

    async def trained(work: Work, samples: int) -> int:
        works.append(work)
        node.append(samples)
        return await train(work, samples)

    def plainly(training: PlainTraining, positions: range) -> float:
        loss = micro_batch(training, positions)
        plain.append((len(positions), loss))
        return loss

    monkeypatch.setattr(Work, "train", trained)
    monkeypatch.setattr(PlainTraining, "micro_batch", plainly)

    found = asyncio.run(measure(TINY, 2, 2, "cpu", tmp_path))
    assert node == [samples for samples, _ in plain] == [2] * 3 * MICRO_BATCHES  # one turn warms up
    assert all(3 < loss < 7 for _, loss in plain)
    assert works[0].replica is not None
    assert works[0].replica.step == 3  # each turn ended with an update that the node checked and applied
    assert found.tokens == 2 * 16
    counts = {name: len(times) for name, times in asdict(found).items() if isinstance(times, list)}
    by_turn = dict.fromkeys(("extract", "decode", "apply", "plain_step"), 2)
    assert counts == dict.fromkeys(("micro_batch", "plain_micro_batch", "data"), 2 * MICRO_BATCHES) | by_turn
    assert min(min(times) for times in asdict(found).values() if isinstance(times, list)) > 0
