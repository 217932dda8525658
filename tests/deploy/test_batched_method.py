"""On a card, a study trains all nodes of a swarm at once, by the same rule as one after the other."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from bench.convergence.arms import ARMS, Arm
from bench.convergence.batched import BatchedVotingMethod, DeviceMerge
from bench.convergence.compressed import SwarmMethod
from bench.convergence.method import Method, SwarmSize, mean
from bench.convergence.problem import Problem
from bench.convergence.text import Text
from thinwire_proto.contract import DecoderSpec, DemoSpec, Parameter, ScheduleSpec
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.topk import dropped_by_update, topk_selection
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Votes, merge

CPU = torch.device("cpu")
MODEL = DecoderSpec(width=48, layers=1, heads=2, hidden=80, context=16)
"""No size is a multiple of a tile's edge."""
SWARM = SwarmSize(nodes=4, samples=8)
SCHEDULE = ScheduleSpec(learning_rate=2e-3, warmup_steps=2, steps=64)
DEMO = DemoSpec(k=96, update_topk=128)
LAYOUT = TileLayout(
    [
        Parameter(name=str(number), shape=shape)
        for number, shape in enumerate([(100, 70), (70,), (64, 128), (130,), (3, 5, 40), (64,)])
    ]
)


@lru_cache(maxsize=1)
def some_text() -> Text:
    drawn = np.random.default_rng(1).integers(0, 64, 20_000).astype(np.uint8)
    drawn[1::2] = drawn[::2]  # something to learn
    return Text(drawn[:16_000], drawn[16_000:], "c" * 64)


def a_problem() -> Problem:
    return Problem(MODEL, some_text(), 1, CPU)


def an_arm(demo: DemoSpec = DEMO) -> Arm:
    return replace(ARMS["thinwire"], demo=demo)


def losses_of(method: Method, rounds: int, local_steps: int = 1) -> list[float]:
    steps = range(0, rounds * local_steps, local_steps)
    return [method.round(step, step * SWARM.samples)[0] for step in steps]


def both(demo: DemoSpec) -> tuple[SwarmMethod, BatchedVotingMethod]:
    return (
        SwarmMethod(a_problem(), an_arm(demo), SCHEDULE, SWARM),
        BatchedVotingMethod(a_problem(), an_arm(demo), SCHEDULE, SWARM),
    )


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The merged votes of all updates that replicas apply, `Merged` or `Levels`."""
    merged: list[Any] = []
    apply = Replica.apply

    def record(replica: Replica, update: Update, head: bytes) -> None:
        merged.append(update.merged)
        apply(replica, update, head)

    monkeypatch.setattr(Replica, "apply", record)
    return merged


DEMOS = {
    "default": DEMO,
    "all votes kept": DemoSpec(k=16, update_topk=0),
    "signs": DemoSpec(precondition="none", magnitude="sign", beta=0.9),
}


@pytest.mark.parametrize("demo", DEMOS.values(), ids=DEMOS)
def test_equal_gradients_lead_to_equal_updates(
    demo: DemoSpec, updates: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_by_one_gradients(
        problem: Problem, first: int, shares: int, samples: int
    ) -> tuple[float, dict[str, Tensor]]:
        each = [problem.gradients(first + number * samples, samples) for number in range(shares)]
        stacked = {name: torch.stack([gradients[name] for _, gradients in each]) for name in problem.parameters}
        return mean([loss for loss, _ in each]), stacked

    monkeypatch.setattr(Problem, "gradients_of_shares", one_by_one_gradients)
    one_by_one, at_once = both(demo)
    expected, found = losses_of(one_by_one, 12), losses_of(at_once, 12)
    if demo is DEMO and expected != found:
        # On processors with AVX2 alone, torch rounds some numbers of a larger tensor in another way. One close choice
        # turns over in the first update, and what follows learns from another replica.
        assert found == pytest.approx(expected, rel=1e-3)
        assert len(np.setxor1d(updates[0].components, updates[12].components)) <= 1
        return
    assert found == expected
    for number in range(12):
        assert np.array_equal(updates[number].components, updates[number + 12].components)
        assert np.array_equal(updates[number].values, updates[number + 12].values)


@pytest.mark.parametrize("update_topk", [0, 3, 40, 320, 4096])
def test_the_merge_on_a_device_is_the_exact_merge(update_topk: int) -> None:
    drawn = np.random.default_rng(update_topk)
    votes = []
    for _ in range(9):
        components = np.sort(drawn.choice(LAYOUT.components // 4, 3000, replace=False)) * 4
        components = np.concatenate([components, np.arange(LAYOUT.matrix_components + 1, LAYOUT.components, 3)])
        votes.append(Votes(np.unique(components), drawn.random(len(np.unique(components))) < 0.7))
    selection = topk_selection(DemoSpec(update_topk=update_topk), LAYOUT, 1234)
    expected = merge([(one, 1) for one in votes], LAYOUT.components, selection)
    components, positive = (np.concatenate(of_all) for of_all in zip(*map(parts_of, votes), strict=True))
    merge_on_device = DeviceMerge(torch.from_numpy(components), torch.from_numpy(positive), LAYOUT, selection)
    found = merge_on_device.merged()
    assert np.array_equal(found.components, expected.components)
    assert np.array_equal(found.values, expected.values)
    assert found.values.dtype == expected.values.dtype
    for one in votes:
        dropped = merge_on_device.dropped(torch.from_numpy(one.components)).numpy()
        assert np.array_equal(dropped, dropped_by_update(one.components, expected, LAYOUT, update_topk))


def parts_of(votes: Votes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    return votes.components, votes.positive
