"""An amendment changes what a contract says from a step on, and nothing else."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.small import small_contract
from thinwire_proto.contract import Contract, ScheduleSpec, parse_contract
from thinwire_proto.contract.amendment import AMENDMENT_BYTES_MAX, AMENDMENTS_MAX, Amendment, parse_amendment
from thinwire_proto.contract.sections import canonical_json
from thinwire_proto.errors import ContractError
from thinwire_proto.exact.amendments import (
    amendable_keys,
    amended,
    amended_by,
    amendments_in,
    contract_at,
    history,
    rewind_of,
    row_extras,
)
from thinwire_proto.exact.schedule import learning_rate

SCHEDULE = ScheduleSpec(learning_rate=0.01, warmup_steps=10, steps=100, floor=0.1)


def contract(**sections: Any) -> Contract:
    return small_contract(schedule=SCHEDULE, **sections)


def change(step: int, **changes: Any) -> Amendment:
    return Amendment(step, {f"schedule.{key}": value for key, value in changes.items()}, "why not", "id")


def rate(of: Contract, step: int) -> float:
    return learning_rate(of.schedule, step)


def test_the_name_of_the_run_stays_and_the_contract_before_is_still_there() -> None:
    first = contract()
    then = amended(first, change(40, learning_rate=0.005))
    assert (then.hash, then.written) == (first.hash, first.written)
    assert then != first
    assert then.first is first
    assert rate(then, 50) == pytest.approx(rate(first, 50) / 2)
    assert contract_at(then, 39) == first
    assert contract_at(then, 40) == then
    assert parse_contract(then.written) == first


@pytest.mark.parametrize("step", [0, 5, 10, 40, 99])
@pytest.mark.parametrize("changes", [{"steps": 300}, {"floor": 0.0, "shape": "linear"}, {"steps": 300, "floor": 0.5}])
def test_a_bent_schedule_goes_on_from_where_it_stands(step: int, changes: dict[str, Any]) -> None:
    first = contract()
    then = amended(first, change(step, **changes))
    after = max(step, 10)  # the warm-up ends as it would have ended
    assert all(rate(then, at) == pytest.approx(rate(first, at)) for at in range(step, 11))
    assert rate(then, step) == pytest.approx(rate(first, step))
    end = then.schedule.steps - 1
    if end > after:
        assert rate(then, end) == pytest.approx(0.01 * changes.get("floor", 0.1), abs=2e-4)


def test_steps_may_be_added_to_a_complete_run_with_or_without_another_warm_up() -> None:
    first = contract()
    longer = amended(first, change(100, steps=200))
    assert [rate(longer, at) for at in (100, 150, 199)] == pytest.approx([0.001] * 3)
    again = amended(first, change(100, steps=200, warmup_steps=9))
    assert [rate(again, at) for at in (100, 104, 109)] == pytest.approx([0.0019, 0.0055, 0.01])
    assert rate(again, 199) == pytest.approx(0.001, abs=1e-4)
    twice = amended(longer, change(150, shape="constant"))
    assert {rate(twice, at) for at in (150, 199)} == {rate(longer, 150)}


def back(step: int, to: Any, **changes: Any) -> Amendment:
    return Amendment(
        step, {"rewind": to} | {f"schedule.{key}": value for key, value in changes.items()}, "", f"to {to}"
    )


@pytest.mark.parametrize("to", [0, 5, 10, 40, 59])
@pytest.mark.parametrize("first", [contract(), amended(contract(), change(30, steps=300))])
def test_a_run_that_goes_back_makes_the_steps_again_with_the_rates_that_they_had(first: Contract, to: int) -> None:
    then = amended(first, back(60, to))
    again = max(to, first.schedule.begin)
    assert then.schedule.steps - first.schedule.steps == 61 - again
    rates = [rate(first, at) for at in range(again, first.schedule.steps)]
    assert [rate(then, at) for at in range(61, then.schedule.steps)] == rates


def test_a_run_that_goes_back_again_to_before_the_first_time_takes_the_rate_of_that_step() -> None:
    for first in (contract(), amended(contract(), change(20, floor=0.3))):
        once = amended(first, back(60, 40))
        for at, to, due in ((90, 30, 30), (90, 60, 60), (90, 61, 40), (90, 71, 50), (61, 0, first.schedule.begin)):
            assert rate(amended(once, back(at, to)), at + 1) == rate(first, due)


def test_without_a_warm_up_the_rate_is_not_taken_for_zero() -> None:
    first = small_contract(schedule=ScheduleSpec(learning_rate=0.01, warmup_steps=0, steps=100))
    assert rate(amended(first, back(60, 0)), 61) == rate(first, 0) > 0.009


def test_a_run_may_go_back_and_change_at_once() -> None:
    then = amended(contract(), back(60, 40, learning_rate=0.001, shape="constant"))
    assert rate(then, 61) == pytest.approx(rate(contract(), 40) / 10)
    assert rate(then, then.schedule.steps - 1) == rate(then, 61)
    assert rewind_of(row_extras(then, 60)) == 40
    assert then.amendments[-1].in_words.startswith("back to step 40, schedule.learning_rate = 0.001")


def test_the_history_of_a_step_leaves_out_what_was_given_up() -> None:
    run = contract()
    for amendment in (back(20, 10), back(30, 25), change(35, floor=0.2), back(50, 15)):
        run = amended(run, amendment)
    assert history(run, 12) == [(0, 12)]
    assert history(run, 20) == [(0, 20)]
    assert history(run, 40) == [(0, 10), (21, 25), (31, 40)]
    assert history(run, 60) == [(0, 15), (51, 60)]


def test_a_run_does_not_go_back_to_a_step_that_is_past_its_new_end() -> None:
    shorter = amended(contract(), back(20, 10, steps=27))
    with pytest.raises(
        ContractError, match=r"step 17 is past the end that the schedule has now.* give schedule\.steps"
    ):
        amended(shorter, back(25, 17))
    assert amended(shorter, back(25, 17, steps=40)).schedule.steps == 40
    once = amended(contract(), back(100, 30))
    assert amended(once, back(110, 100)).schedule.steps == 111  # the model of the whole schedule: nothing is left


@pytest.mark.parametrize("to", [60, 61, -1, True, "40", 2.0])
def test_a_run_goes_back_to_earlier_steps_alone(to: Any) -> None:
    with pytest.raises(ContractError, match="it can go back to steps 0 to 59"):
        amended(contract(), back(60, to))


def test_nothing_begins_with_the_row_that_goes_back() -> None:
    then = amended(contract(), back(60, 40))
    with pytest.raises(ContractError, match="nothing else can begin with it"):
        amended(then, change(60, floor=0.2))


def test_several_amendments_of_one_step_and_later_ones_hold_in_their_order() -> None:
    first = contract()
    written = [
        change(7, learning_rate=0.02).written,
        change(7, learning_rate=0.03).written,
        change(9, floor=0.2).written,
    ]
    then = amended_by(first, written)
    assert (then.schedule.learning_rate, then.schedule.floor) == (0.03, 0.2)
    assert row_extras(then, 7) == {"amendments": written[:2]}
    assert amendments_in(row_extras(then, 9)) == written[2:]
    assert row_extras(then, 8) == {}
    with pytest.raises(ContractError, match="cannot follow"):
        amended(then, change(8, learning_rate=0.04))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model.width": 64}, r"model\.width cannot change within a run"),
        ({"round.pace": "clock"}, r"round\.pace cannot change"),
        ({"schedule.rate": 1}, r"schedule\.rate: thinwire .* knows no such key of this run$"),
        ({"nothing": 1}, "knows no such key"),
        ({"schedule.learning_rate": "fast"}, "learning_rate"),
        ({"schedule.learning_rate": 2.0}, "learning_rate"),
        ({"schedule.steps": 40}, r"schedule\.steps must be above 40"),
        ({"schedule.warmup_steps": 60}, "the warm-up must end before the run.* give fewer of them, or a larger"),
        ({"round.min_contributions": 5000}, "min_contributions must be at most nodes_max"),
        ({"schedule.weight_decay": 200.0}, "must be less than 1"),
        ({"rule.outer_rate": 2.0}, r'rule\.outer_rate needs demo\.magnitude = "tile"'),
        ({"round.samples": 2.5}, "samples"),
    ],
)
def test_what_cannot_change_is_refused_in_words(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ContractError, match=says):
        amended(contract(), Amendment(40, changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"demo.vote_levels": 0}, r"demo\.vote_levels cannot change between 0 and more"),
        ({"demo.update_levels": 0}, r"demo\.vote_levels needs demo\.update_levels above 0"),
        ({"demo.k": 96}, r"demo\.vote_levels needs"),
        ({"demo.vote_levels": 128}, "less than or equal to 127"),
        ({"demo.vote_levels": 100}, "so that merged votes fit an int16"),
    ],
)
def test_levels_stay_levels_whose_sums_fit(changes: dict[str, Any], says: str) -> None:
    levels = contract(rule={"kind": "merged_muon"}, round={"nodes_max": 100})
    assert amended(levels, Amendment(4, {"demo.vote_levels": 9, "demo.update_levels": 15})).demo.largest_vote == 9
    with pytest.raises(ContractError, match=says):
        amended(levels, Amendment(4, changes))


def test_signs_do_not_become_levels() -> None:
    signs = contract(rule={"kind": "merged_muon"}, demo={"vote_levels": 0})
    with pytest.raises(ContractError, match=r"demo\.vote_levels cannot change between 0 and more"):
        amended(signs, Amendment(4, {"demo.vote_levels": 3}))
    all_components = contract(demo={"magnitude": "tile", "update_levels": 0})
    with pytest.raises(ContractError, match=r"demo\.update_levels cannot change between 0 and more"):
        amended(all_components, Amendment(4, {"demo.update_levels": 3}))


@pytest.mark.parametrize("because", ["\N{GRINNING FACE}" * 500, "x" * 501, "caf\udce9"])
def test_a_reason_that_could_not_be_read_again_is_refused(because: str) -> None:
    with pytest.raises(ContractError, match="amendment"):
        amended(contract(), Amendment(40, {"schedule.floor": 0.2}, because))


def test_a_key_that_a_later_thinwire_knows_names_it() -> None:
    with pytest.raises(ContractError, match=r"it needs thinwire 9\.1\.0"):
        amended(contract(), Amendment(40, {"schedule.bend": 1}, version="9.1.0"))


def test_an_amendment_does_not_choose_samples_that_were_granted_before_the_last_one() -> None:
    found = amended(contract(), Amendment(3, {"schedule.floor": 0.2}, position=90))
    with pytest.raises(ContractError, match="cannot follow"):
        amended(found, Amendment(4, {"schedule.floor": 0.3}, position=89))
    amended(found, Amendment(4, {"schedule.floor": 0.3}, position=90))


def test_the_keys_that_may_change_can_be_changed() -> None:
    found = contract()
    for key in amendable_keys(found):
        section, _, name = key.partition(".")
        assert amended(found, Amendment(3, {key: getattr(getattr(found, section), name)})) != found


def test_a_run_has_so_many_amendments_and_no_more() -> None:
    found = contract()
    for _ in range(AMENDMENTS_MAX):
        found = amended(found, change(3, learning_rate=0.02))
    with pytest.raises(ContractError, match="at most"):
        amended(found, change(3, learning_rate=0.02))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"step":1}',
        change(3, learning_rate=0.02).written.replace(b'"step":3', b'"step":-3'),
        change(3, learning_rate=0.02).written.replace(b'"step":3', b'"step":true'),
        change(3, learning_rate=0.02).written.replace(b'"step":3', b'"step": 3'),
        change(3).written,
        canonical_json(
            {
                "step": 3,
                "set": {"a.b": "x" * AMENDMENT_BYTES_MAX},
                "because": "",
                "id": "",
                "position": 0,
                "version": "",
            }
        ),
        canonical_json({"step": 3, "set": {"a.b": 1}, "because": "x" * 501, "id": "", "position": 0, "version": ""}),
    ],
)
def test_what_is_no_amendment_is_refused(data: bytes) -> None:
    with pytest.raises(ContractError, match="amendment"):
        parse_amendment(data)


@given(st.binary(max_size=200) | st.recursive(st.integers() | st.text(max_size=4), st.lists).map(canonical_json))
def test_anything_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ContractError):
        assert parse_amendment(data).written == data


@pytest.mark.parametrize("extras", [{"amendments": 3}, {"amendments": ["text"]}])
def test_a_row_with_anything_else_is_refused(extras: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match="not a list of bytes"):
        amendments_in(extras)
