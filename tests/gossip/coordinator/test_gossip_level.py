"""The decisions about codec and `every` that rows seal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.small import small_contract
from thinwire_coordinator.gossip.level import LEVEL, GivenLevel, Ladder, ladder_of_run
from thinwire_coordinator.gossip.measurements import CONSENSUS
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.contract.rules.adamw import AdamWSpec
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.consensus import CALM, LEVELS
from thinwire_proto.wire.rows import Row


def ladder(**exchange: Any) -> Ladder | None:
    rounds = {"length_ms": 60_000, "nodes_max": 4, "min_contributions": 2, "pace": "clock"}
    return ladder_of_run(small_contract(round=rounds, exchange=GossipSpec(**exchange), rule=AdamWSpec(samples=1)))


def row(**extras: Any) -> Row:
    return Row(1, 1, 1, 0, 0, bytes(32), 1, (), bytes(32), extras=extras)


def controlled() -> Ladder:
    found = ladder(codec="sign", consensus_target=2.0)
    assert found is not None
    return found


def test_without_a_target_nothing_is_controlled() -> None:
    assert ladder(codec="sign") is None


def test_above_the_target_more_bytes_follow_ahead_of_all_and_calm_ones_lower_them() -> None:
    steps = controlled()
    assert steps.levels[steps.first.index].codec == "sign"
    higher = steps.after(steps.first, 3.0, ahead=70)
    assert (steps.levels[higher.index].codec, higher.start) == ("int8", 70)
    near = steps.after(higher, 1.5, ahead=130)
    assert (near.index, near.start) == (higher.index, 70)  # nothing changes, so nothing begins
    given = near
    for _ in range(CALM):
        given = steps.after(given, 0.1, ahead=200)
    assert (given.index, given.start) == (steps.first.index, 200)
    assert steps.after(higher, 9.0, ahead=60).start == 71  # after the one before, always


def test_rows_repeat_a_decision_or_derive_it_from_their_measurement() -> None:
    steps = controlled()
    higher = steps.after(steps.first, 3.0, ahead=70)
    assert steps.check(steps.first, row(**{LEVEL: steps.plain(steps.first)})).index == steps.first.index
    found = steps.check(steps.first, row(**{LEVEL: steps.plain(higher), CONSENSUS: {"in_steps": 3.0}}))
    assert steps.plain(found) == steps.plain(higher)
    unknown = row(**{LEVEL: steps.plain(steps.first), CONSENSUS: {"in_steps": None}})
    assert steps.check(steps.first, unknown).index == steps.first.index
    assert steps.newest(row(**{LEVEL: steps.plain(higher)})).start == 70
    assert steps.newest(None) == steps.first


@pytest.mark.parametrize("in_steps", [None, 1.5, 3.0])
def test_a_decision_that_does_not_follow_is_found(in_steps: float | None) -> None:
    steps = controlled()
    right = steps.first if in_steps != 3.0 else steps.after(steps.first, 3.0, ahead=70)
    wrong = [GivenLevel(index, right.calm, right.start) for index in range(len(LEVELS)) if index != right.index]
    wrong.append(replace(right, calm=right.calm + 1))
    if in_steps != 3.0:
        wrong.append(replace(right, start=9))
    for given in wrong:
        with pytest.raises(PayloadError, match="the rows up to it give"):
            steps.check(steps.first, row(**{LEVEL: steps.plain(given), CONSENSUS: {"in_steps": in_steps}}))


@pytest.mark.parametrize("change", [{"codec": "topk:64"}, {"every": 3}, {"calm": -1}, {"start": 1.5}, {"calm": "1"}])
def test_what_is_no_level_is_refused(change: dict[str, Any]) -> None:
    steps = controlled()
    with pytest.raises(PayloadError):
        steps.newest(row(**{LEVEL: steps.plain(steps.first) | change}))
