"""The held-out loss of a gossip run: who measures which samples, when, and what counts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.prepared import prepared
from support.small import MODEL
from thinwire_coordinator.gossip.gossip import Gossip
from thinwire_coordinator.gossip.held_out import SHARE, TRAINING, HeldOutLosses
from thinwire_coordinator.hall.hall import open_hall
from thinwire_coordinator.hall.ledger.creation import create_state
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.hall.measurement import Part, SetMeasured
from thinwire_coordinator.hall.workers import Workers
from thinwire_proto.contract import RunSpec
from thinwire_proto.data.conversations import COUNTS
from thinwire_proto.task import HeldOutSet

SETS = (HeldOutSet("prose", 64), HeldOutSet("code", 20))
NODES = [f"node {number}" for number in range(3)]
AT = 960
TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}{{ message.content }};{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


def samples_of(part: Part) -> int:
    return part.count


def losses(
    every: int = 32, trained: int = 4, iterations: int = 10_000, weight_of: Callable[[Part], int] = samples_of
) -> HeldOutLosses:
    return HeldOutLosses(SETS, every, trained, lambda: iterations, weight_of)


def parts(held_out: HeldOutLosses, nodes: list[str]) -> dict[str, list[Part]]:
    return {node: held_out.open_to(node) for node in nodes}


def results(held_out: HeldOutLosses) -> list[SetMeasured]:
    return [held_out.results.get_nowait() for _ in range(held_out.results.qsize())]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100])
def test_each_sample_is_measured_by_one_node(count: int) -> None:
    held_out, nodes = losses(), [f"node {number}" for number in range(count)]
    assert not held_out.begin(AT, nodes)
    given = parts(held_out, nodes)
    for found in SETS:
        own = [part for these in given.values() for part in these if part.name == found.name]
        samples = [number for part in own for number in range(part.start, part.start + part.count)]
        assert sorted(samples) == list(range(found.samples))
        assert {(part.step, part.spread) for part in own} == {(AT, found.samples)}
        assert max(part.count for part in own) - min(part.count for part in own) <= 1
    assert max(len(these) for these in given.values()) <= len(SETS)


def test_the_loss_is_the_median_over_the_parts_so_no_node_alone_decides_it() -> None:
    for lie in (0.0, 1e-2, 9e5, -math.inf, math.nan):
        held_out = losses()
        held_out.begin(AT, NODES)
        for node, given in parts(held_out, NODES).items():
            for part in given:
                assert held_out.answered(node, part, lie if node == NODES[0] else 2.0 + part.start / 100) == ""
        found = {one.name: one for one in results(held_out)}
        assert {(one.step, one.measured_by) for one in found.values()} == {(AT, "nodes")}
        assert all(2.0 <= one.loss < 2.7 for one in found.values())
        assert held_out.iteration == 0


def test_a_part_weighs_what_counts_in_its_samples() -> None:
    """The first part of a set has most of the tokens that count, so its loss is the median."""
    held_out = losses(weight_of=lambda part: 100 if part.start == 0 else 1)
    held_out.begin(AT, NODES)
    for node, given in parts(held_out, NODES).items():
        for part in given:
            held_out.answered(node, part, 3.0 if part.start == 0 else 1.0)
    assert [found.loss for found in results(held_out)] == [3.0, 3.0]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e7])
def test_two_of_three_nodes_that_have_diverged_show_in_the_loss(loss: float) -> None:
    held_out = losses()
    held_out.begin(AT, NODES)
    for node, given in parts(held_out, NODES).items():
        for part in given:
            assert held_out.answered(node, part, 1.0 if node == NODES[0] else loss) == ""
    assert [math.isfinite(found.loss) for found in results(held_out)] == [False, False]


def test_a_part_counts_once_and_from_its_own_node_alone() -> None:
    held_out = losses()
    held_out.begin(AT, NODES)
    (part, *_) = held_out.open_to(NODES[0])
    assert "not wanted" in held_out.answered(NODES[1], part, 1.0)
    assert "not wanted" in held_out.answered("stranger", part, 1.0)
    assert held_out.answered(NODES[0], part, 1.0) == ""
    assert "not wanted" in held_out.answered(NODES[0], part, 1.0)


@pytest.mark.parametrize(("trained", "nodes"), [(1, 1), (4, 1), (4, 3), (16, 3), (4, 100)])
def test_measuring_takes_at_most_a_small_share_of_the_time_of_training(trained: int, nodes: int) -> None:
    held_out, names = losses(every=1, trained=trained), [f"node {number}" for number in range(nodes)]
    began = [0]
    for iteration in range(1, 3000):
        held_out.begin(iteration, names)
        if held_out.iteration > began[-1]:
            most = max(sum(part.count for part in held_out.open_to(name)) for name in names)
            assert most <= (iteration - began[-1]) * trained * TRAINING / SHARE
            began.append(iteration)
    assert len(began) > 3


def test_it_is_measured_as_seldom_as_the_organizer_says_and_not_at_the_end() -> None:
    held_out = losses(every=500, trained=1 << 20, iterations=1000)
    assert not any(held_out.begin(iteration, NODES) for iteration in range(1, 500))
    assert held_out.iteration == 0
    held_out.begin(500, NODES)
    assert held_out.iteration == 500
    held_out.begin(1000, NODES)  # the coordinator measures the mean
    assert held_out.iteration == 500
    never = losses(every=0)
    never.begin(AT, NODES)
    assert never.iteration == 0


def test_a_set_that_is_added_is_in_the_next_measurement() -> None:
    held_out = losses()
    held_out.begin(AT, NODES)
    assert not held_out.amend((*SETS, HeldOutSet("news", 40)))
    assert {part.name for given in parts(held_out, NODES).values() for part in given} == {"prose", "code"}
    assert held_out.begin(2 * AT, NODES)
    assert {part.name for given in parts(held_out, NODES).values() for part in given} == {"prose", "code", "news"}


def test_a_measurement_beyond_a_new_end_is_given_up() -> None:
    steps = 10_000
    held_out = HeldOutLosses(SETS, 32, 4, lambda: steps, samples_of)
    held_out.begin(AT, NODES)
    steps = AT + 1
    assert not held_out.amend(SETS)
    steps = AT
    assert held_out.amend(SETS)
    assert held_out.iteration == 0


async def test_a_run_weighs_a_part_by_the_tokens_that_count(tmp_path: Path) -> None:
    rows = [{"prompt": f"{number}?", "response": "yes" * (1 + number % 8)} for number in range(200)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    settings: dict[str, Any] = {"chat_template": tmp_path / "template.jinja", "context": 32, "packed": False}
    prepared(tmp_path / "data", tmp_path / "chats.jsonl", **settings, held_out=0.5)
    sections = {
        "model": MODEL | {"vocabulary": 256},
        "data": {"kind": "tokens", "folder": str(tmp_path / "data")},
        "exchange": {"kind": "gossip"},
        "rule": {"kind": "adamw"},
        "schedule": {"steps": 2 * AT},
    }
    (tmp_path / "state").mkdir()
    create_state(tmp_path / "state", RunSpec.model_validate(sections))
    with closing(open_state(tmp_path / "state")) as state, closing(Workers()) as workers:
        hall = open_hall(state, state.load_snapshot(0), workers)
        held_out = Gossip(hall, evaluate_every=1).held_out
        held_out.begin(AT, NODES)
        (found,) = state.held_out_sets
        weighed = held_out._current[found.name].weights
        assert len(weighed) == len(NODES)
        for part, weight in weighed.items():
            _, marks = state.data.held_out(found.name, found.spread(part.spread)[part.start : part.start + part.count])
            assert weight == int((marks & COUNTS > 0).sum()) > 2 * part.count
