"""Tests every rule of a shared measurement with synthetic answers and times."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest

from support.small import small_contract
from thinwire_coordinator.hall.measurement import (
    BASE_TOLERANCE,
    TOLERANCE,
    Action,
    Judged,
    MeasureHere,
    Measurement,
    Part,
    SetMeasured,
    agree,
    parts_of,
    smallest_of,
    tolerance_of,
)
from thinwire_proto.contract.models.lora import BaseFile, LoraSpec
from thinwire_proto.task import HeldOutSet

STEP, ANSWER_S = 40, 10.0
WIKI, CODE = HeldOutSet("wiki", 1000, 4000), HeldOutSet("code", 5)


class Shared:
    """A measurement of one or more sets, and everything that it asked for."""

    def __init__(
        self, nodes: str = "abc", sets: tuple[HeldOutSet, ...] = (HeldOutSet("wiki", 8),), seed: int = 1
    ) -> None:
        self.parts = parts_of(STEP, sets, 64)
        self.measurement = Measurement(STEP, self.parts, nodes, ANSWER_S, random.Random(seed))
        self.actions: list[Action] = []
        self.do(self.measurement.begin(0.0))

    def do(self, actions: list[Action]) -> list[Action]:
        self.actions += actions
        return actions

    def asked(self, part: Part) -> list[str]:
        return [node for node in self.measurement.participants if part in self.measurement.open_to(node)]

    def answer(self, node: str, part: Part, loss: float, now: float = 1.0) -> list[Action]:
        assert not self.measurement.why_refused(node, part, loss)
        return self.do(self.measurement.answer(node, part, loss, now))

    @property
    def measured(self) -> list[tuple[str, Any, str]]:
        return [(a.name, a.loss, a.measured_by) for a in self.actions if isinstance(a, SetMeasured)]

    @property
    def here(self) -> list[Part]:
        return [action.part for action in self.actions if isinstance(action, MeasureHere)]

    def judged(self, result: str) -> list[str]:
        return [action.node for action in self.actions if isinstance(action, Judged) and action.result == result]


def test_the_parts_cover_the_fixed_samples_of_each_set_once() -> None:
    parts = parts_of(STEP, [WIKI, CODE], 20)
    assert [(part.name, part.spread, part.start, part.count) for part in parts] == [
        ("wiki", 20, 0, 8), ("wiki", 20, 8, 8), ("wiki", 20, 16, 4), ("code", 5, 0, 5)
    ]  # fmt: skip
    assert WIKI.spread(3) == [0, 499, 999]
    assert (CODE.spread(20), CODE.spread(1)) == ([0, 1, 2, 3, 4], [0])
    assert CODE.bits_per_nat(64) is None
    assert WIKI.bits_per_nat(16) == pytest.approx(16 * 1000 / 4000 / math.log(2))


def test_each_part_is_given_to_two_nodes_and_the_load_is_even() -> None:
    shared = Shared("abcd", (WIKI,))
    assert len(shared.parts) == 8
    assert all(len(shared.asked(part)) == 2 for part in shared.parts)
    loads = Counter(node for part in shared.parts for node in shared.asked(part))
    assert set(loads.values()) == {4}
    pairs = {tuple(sorted(shared.asked(part))) for seed in range(5) for shared in [Shared("abcd", (WIKI,), seed)]
             for part in shared.parts}  # fmt: skip
    assert len(pairs) == 6  # no node can choose whom it is compared with


def test_two_answers_that_agree_are_accepted() -> None:
    shared = Shared("ab", (WIKI, CODE))
    for number, part in enumerate(shared.parts):
        shared.answer("a", part, 2.0 + number)
        assert not shared.measurement.complete
        shared.answer("b", part, (2.0 + number) * (1 + 5e-5))
    assert shared.measurement.complete
    assert [name for name, _, _ in shared.measured] == ["wiki", "code"]
    assert {name: loss for name, loss, _ in shared.measured} == pytest.approx(
        {"wiki": (2.0 + 3.5) * (1 + 2.5e-5), "code": 10.0 * (1 + 2.5e-5)}
    )
    assert {by for _, _, by in shared.measured} == {"nodes"}
    assert len(shared.judged("agreed")) == 2 * len(shared.parts)
    assert shared.measurement.deadline is None


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (3.0, 3.0, True),
        (3.0, 3.0 * (1 + 0.9e-4), True),
        (3.0, 3.0 * (1 + 1.2e-4), False),  # bfloat16
        (3.0, 2.97, False),
        (0.0, 5e-7, True),  # an error of rounding beside larger terms
        (0.0, 5e-6, False),
    ],
)
def test_losses_agree_to_the_digit_that_float32_allows(one: float, other: float, equal: bool) -> None:
    assert agree(one, other) == agree(other, one) == equal


@pytest.mark.parametrize(("apart", "result"), [(0.9, "agreed"), (1.1, "differed")])
def test_nodes_whose_bases_have_other_bits_are_not_taken_for_liars(apart: float, result: str) -> None:
    part = parts_of(STEP, (HeldOutSet("wiki", 8),), 64)[0]
    measurement = Measurement(STEP, [part], "ab", ANSWER_S, random.Random(1), tolerance=BASE_TOLERANCE)
    measurement.begin(0.0)
    measurement.answer("a", part, 3.0, 1.0)
    actions = measurement.answer("b", part, 3.0 * (1 + apart * BASE_TOLERANCE), 1.0)
    if apart > 1:
        actions = measurement.measured_here(part, 3.0)
    assert [action.result for action in actions if isinstance(action, Judged)] == ["agreed", result]


@pytest.mark.parametrize(("apart", "result"), [(0.9, "agreed"), (1.1, "differed")])
def test_losses_of_preferences_are_compared_with_that_of_a_coin(apart: float, result: str) -> None:
    """The smaller the loss, the more of it a base in 4 bits moves."""
    sets = (HeldOutSet("pairs", 8, unit="pair"),)
    (part,), least, loss = parts_of(STEP, sets, 64), smallest_of(sets), 0.05
    assert least == pytest.approx(math.log(2))
    assert smallest_of([HeldOutSet("wiki", 8)]) < loss
    measurement = Measurement(STEP, [part], "ab", ANSWER_S, random.Random(1), tolerance=BASE_TOLERANCE, smallest=least)
    measurement.begin(0.0)
    measurement.answer("a", part, loss, 1.0)
    actions = measurement.answer("b", part, loss + apart * BASE_TOLERANCE * least, 1.0)
    if apart > 1:
        actions = measurement.measured_here(part, loss)
    assert [action.result for action in actions if isinstance(action, Judged)] == ["agreed", result]


def test_only_a_frozen_base_widens_the_tolerance() -> None:
    file = BaseFile(hash="0" * 64, size=8)
    assert tolerance_of(small_contract().model) == TOLERANCE < tolerance_of(LoraSpec(files=(file,))) == BASE_TOLERANCE


@pytest.mark.parametrize(
    ("found", "wrong"),
    [(2.00001, ["liar"]), (3.0, ["honest", "liar"]), (math.nan, [])],
    ids=["one is wrong", "both are wrong", "the coordinator cannot say"],
)
def test_the_coordinator_decides_where_two_answers_differ_and_says_who_was_wrong(
    found: float, wrong: list[str]
) -> None:
    """However many identities would agree with the liar, nobody else is asked."""
    shared = Shared("abcdefgh")
    (part,) = shared.parts
    honest, liar = shared.asked(part)
    shared.answer(honest, part, 2.0)
    assert shared.answer(liar, part, 0.01) == [MeasureHere(part)]
    assert shared.measurement.waits_for_coordinator
    assert shared.asked(part) == []
    shared.do(shared.measurement.measured_here(part, found))
    assert shared.measured == [("wiki", pytest.approx(found, nan_ok=True), "coordinator")]
    assert shared.judged("differed") == [{"honest": honest, "liar": liar}[name] for name in wrong]
    assert len(shared.judged("agreed")) == (2 - len(wrong) if math.isfinite(found) else 0)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e7, -1e7])
def test_an_impossible_loss_is_refused_and_another_node_is_asked(loss: float) -> None:
    shared = Shared("abc")
    (part,) = shared.parts
    node = shared.asked(part)[0]
    assert "must be finite and at most 1e+06" in shared.measurement.why_refused(node, part, loss)
    shared.do(shared.measurement.decline(node, part, 1.0))
    assert shared.judged("unanswered") == [node]
    assert len(shared.asked(part)) == 2
    assert node not in shared.asked(part)
    assert "is not assigned" in shared.measurement.why_refused(node, part, 2.0)


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_events_ends_and_measures_each_part_once(seed: int) -> None:
    """Nodes answer, lie, decline, leave and are late at random; the coordinator measures the rest."""
    rng = random.Random(seed)
    shared = Shared("abcdef", (WIKI, CODE), seed)
    now = 0.0
    for _ in range(1000):
        now += rng.random()
        for part in shared.here:
            shared.do(shared.measurement.measured_here(part, 2.0))
        waiting = [(node, part) for part in shared.parts for node in shared.asked(part)]
        if not waiting:
            break
        node, part = rng.choice(waiting)
        event = rng.random()
        if event < 0.7:
            shared.answer(node, part, 2.0 if rng.random() < 0.8 else rng.random(), now)
        elif event < 0.8:
            shared.do(shared.measurement.decline(node, part, now))
        elif event < 0.82:
            shared.do(shared.measurement.leave(node, now))
        else:
            shared.do(shared.measurement.tick(now))
    assert shared.measurement.complete
    assert sorted((name, loss) for name, loss, _ in shared.measured) == [("code", 2.0), ("wiki", 2.0)]
