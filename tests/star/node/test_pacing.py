"""Every rule of `pacing` with synthetic times, and when a node that cannot keep up with the swarm stops."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

import pytest

from thinwire_coordinator.star.trust.comparison import EMPTY_SHARE
from thinwire_node.star.exchange import BAD_WINDOWS, KeepingUp
from thinwire_node.star.pacing import (
    Drop,
    Extract,
    Measure,
    PacingView,
    RoundView,
    SayNothing,
    Train,
    Wait,
    decide,
    extract_at,
    fitting_k,
)
from thinwire_node.training.lease import Lease
from thinwire_node.training.speed import Tail
from thinwire_proto.contract import RoundSpec
from thinwire_proto.limits import KEEPING_UP_S

T = 10.0


def spec(pace: str = "clock", age: int = 1, samples: int = 8) -> RoundSpec:
    return RoundSpec.model_validate(
        {"pace": pace, "base_age_max": age, "samples": samples, "length_ms": int(T * 1000), "nodes_max": 100}
    )


ROUND = RoundView(step=5, deadline=T, error=0.1)
VIEW = PacingView(
    now=1.0,
    round=ROUND,
    contributed=False,
    out=False,
    hurry=False,
    replica_step=5,
    base_step=5,
    samples=3,
    leased=100,
    ready=100,
    sample_s=0.01,
    tail_s=1.0,
    micro_batch=4,
)


def kind(rules: RoundSpec, **changes: Any) -> type:
    return type(decide(replace(VIEW, **changes), rules))


def test_a_low_limit_on_the_upload_leaves_an_eighth_of_what_others_send() -> None:
    """Less would be a cause to suspect the node (docs/trust.md, `empty`)."""
    spec = RoundSpec(length_ms=30_000)
    tiles = 30_000
    assert fitting_k(spec, 96, tiles, 1.25, 62.5e3) == 25
    assert fitting_k(spec, 96, tiles, 1.25, 4e3) == 12 > EMPTY_SHARE * 96
    assert fitting_k(spec, 1, tiles, 1.25, 4e3) == 1


@pytest.mark.parametrize(
    ("rules", "changes", "expected"),
    [
        (spec(), {"to_measure": 9}, Measure),
        (spec(), {"to_measure": 9, "now": 4.0}, Train),  # half of the round is for training
        (spec(), {"to_measure": 9, "sample_s": 0.0}, Train),  # nothing is known yet about how long it takes
        (spec(), {"to_measure": 9, "now": 8.65}, Extract),
        (spec(), {"to_measure": 9, "base_step": 3}, Drop),
        (spec(), {"to_measure": 9, "leased": 0, "contributed": True}, Measure),  # it would wait
        (spec(), {"to_measure": 9, "round": None}, Measure),
        (spec(), {"to_measure": 9, "round": None, "sample_s": 0.0}, Measure),
        (spec("barrier"), {"to_measure": 9, "now": 8.0}, Measure),  # five samples of the share are left
        (spec("barrier"), {"to_measure": 9, "now": 8.0, "sample_s": 0.2}, Train),
        (spec("barrier", samples=3), {"to_measure": 9}, Extract),
        (spec("barrier", age=0, samples=3), {"to_measure": 9, "out": True, "contributed": True}, Measure),
    ],
)
def test_held_out_samples_are_measured_when_that_makes_nothing_late(
    rules: RoundSpec, changes: dict[str, Any], expected: type
) -> None:
    assert kind(rules, **changes) is expected


@pytest.mark.parametrize(
    ("changes", "samples"),
    [
        ({}, 64),
        ({"sample_s": 0.1}, 25),  # a quarter of a round, as a micro-batch
        ({"sample_s": 0.1, "measure_s": 0.5}, 5),
        ({"measure_s": 0.02}, 64),
        ({"measure_s": 30.0}, 1),  # at least one, however slow the machine is
        ({"sample_s": 0.0}, 1),  # nothing is known yet about how long it takes
    ],
)
@pytest.mark.parametrize("waits", [{"round": None}, {"leased": 0, "contributed": True}], ids=["no round", "no lease"])
def test_a_node_that_waits_measures_for_no_longer_than_it_would_train(
    waits: dict[str, Any], changes: dict[str, Any], samples: int
) -> None:
    found = decide(replace(VIEW, to_measure=99, micro_batch=64, **waits, **changes), spec())
    assert isinstance(found, Measure)
    assert found.samples == samples


@pytest.mark.parametrize(
    "changes",
    [{}, {"to_measure": 9}, {"to_measure": 9, "round": None, "base_step": None, "samples": 0}, {"contributed": True}],
)
def test_a_machine_that_rests_neither_trains_nor_measures(changes: dict[str, Any]) -> None:
    found = decide(replace(VIEW, rests_until=7.0, **changes), spec())
    assert isinstance(found, Wait)
    assert (found.until, found.phase) == (7.0, "rest")


def test_a_machine_that_can_train_no_more_in_a_round_lets_nobody_wait() -> None:
    assert decide(replace(VIEW, rests_until=8.7), spec("barrier")) == Extract("the machine rests until time is up")
    assert kind(spec("barrier"), rests_until=8.7, samples=0, base_step=None) is Wait


NOTHING_TRAINED: dict[str, Any] = {"samples": 0, "base_step": None}


@pytest.mark.parametrize(
    ("rules", "changes", "expected"),
    [
        # the extraction leaves time for encoding and upload
        (spec(), {"now": 8.6}, Train),
        (spec(), {"now": 8.65}, Extract),
        (spec(), {"now": T}, Extract),  # exactly at the deadline, the contribution may still count
        (spec(), {"now": T + 0.01}, Train),  # after the deadline, training is for the next round
        # a micro-batch that would end too late starts after the extraction
        (spec(), {"now": 6.0, "sample_s": 3.0}, Extract),
        (spec(), {"now": 6.0, "sample_s": 3.0} | NOTHING_TRAINED, Train),
        # training continues while a round can accept the base
        (spec(age=0), NOTHING_TRAINED, Train),
        (spec(age=0), {"contributed": True} | NOTHING_TRAINED, Wait),  # waits for the update
        (spec(age=0), {"replica_step": 4} | NOTHING_TRAINED, Wait),
        (spec(age=1), {"contributed": True} | NOTHING_TRAINED, Train),  # for the next round, on one step older
        (spec(age=1), {"replica_step": 4} | NOTHING_TRAINED, Train),
        (spec(age=1), {"replica_step": 4, "contributed": True} | NOTHING_TRAINED, Wait),
        (spec(age=2), {"replica_step": 4, "contributed": True} | NOTHING_TRAINED, Train),
        (spec(age=1), {"replica_step": 3} | NOTHING_TRAINED, Wait),
        # a gradient too old for any round is dropped
        (spec(), {"base_step": 4}, Train),
        (spec(), {"base_step": 3}, Drop),
        (spec(age=0), {"base_step": 4}, Drop),
        (spec(), {"base_step": 5, "replica_step": 7}, Drop),  # the next round is based on step 7
        # only one contribution is in flight
        (spec(), {"now": 9.0, "out": True}, Train),
        (spec(), {"now": 9.0, "contributed": True}, Train),
        # at pace barrier each node trains its share, and less after a round that it missed
        (spec("barrier", age=0), {"samples": 8}, Extract),
        (spec("barrier", age=1), {"samples": 7, "contributed": True}, Train),
        (spec("barrier", age=1), {"samples": 8}, Extract),
        (spec("barrier", age=0), {"samples": 1, "hurry": True}, Extract),
    ],
)
def test_what_a_node_does_in_a_round(rules: RoundSpec, changes: dict[str, Any], expected: type) -> None:
    assert kind(rules, **changes) is expected


@pytest.mark.parametrize(
    ("changes", "samples"),
    [
        ({"sample_s": 0.0}, 4),
        ({"leased": 3}, 3),
        ({"sample_s": 1.0}, 2),  # a quarter of a round
        ({"sample_s": 30.0}, 1),  # at least one, however slow the machine is
        ({"now": 8.0, "sample_s": 0.2}, 3),  # the time left before the extraction
    ],
)
def test_micro_batches_fit_into_the_time_left(changes: dict[str, Any], samples: int) -> None:
    decision = decide(replace(VIEW, **({"samples": 0, "base_step": None} | changes)), spec(samples=64))
    assert isinstance(decision, Train)
    assert decision.samples == samples


def test_the_tail_is_the_slowest_of_the_last_eight() -> None:
    tail = Tail()
    assert tail.seconds(T) == T / 4
    tail.encoded(0.1)
    assert tail.seconds(T) == T / 4  # only half of it is measured
    tail.arrived(1000, 2.0)
    tail.arrived(2000, 1.0)
    assert tail.seconds(T) == pytest.approx(0.1 + 2000 * 0.002)
    for _ in range(8):
        tail.encoded(0.2)
        tail.arrived(1000, 0.5)
    assert tail.seconds(T) == pytest.approx(0.7)


def test_a_renewed_lease_continues_after_the_trained_positions() -> None:
    lease = Lease()
    lease.renew([range(4), range(10, 20)])
    assert [lease.take(3), lease.take(3), lease.take(1)] == [[0, 1, 2], [3, 10, 11], [12]]
    lease.renew([range(2, 4), range(10, 20), range(30, 32)])  # announced before the swarm learned of the last two
    assert lease.left == 9
    assert lease.take(7) == list(range(13, 20))
    lease.renew([range(30, 32), range(50, 60)])
    assert (lease.take(2), lease.trained_through) == ([30, 31], 31)


def test_training_waits_for_data_but_the_contribution_is_in_time() -> None:
    due = extract_at(VIEW, ROUND, spec())
    waiting = replace(VIEW, ready=0)
    assert decide(waiting, spec()) == Wait("the data of the next samples have not arrived", phase="data", until=due)
    assert kind(spec(), ready=0, now=due) is Extract
    assert kind(spec(), ready=0, now=due, samples=0, base_step=None) is SayNothing
    assert kind(spec(), ready=0, now=due, leased=0) is Extract
    after = decide(replace(waiting, now=due, contributed=True), spec())
    assert after == Wait("the data of the next samples have not arrived", phase="data")


HICCUP_S = 12.0
"""Longer than a window, and shorter than the time after which gRPC gives a connection up."""


def catch_up(
    fetch_s: float,
    replay_s: float,
    round_s: float,
    behind: int,
    *,
    hiccups: Container[int] = (),
    saves_s: Mapping[int, float] | None = None,
) -> tuple[str | None, int]:
    """Simulate a catch-up. Returns the error message or None, and the number of updates applied.

    hiccups: steps before whose update the line is silent. saves_s: how long the node saves after these steps."""
    now, step, head = 0.0, 0, float(behind)
    keeping_up = KeepingUp(0, behind, now)
    while step < int(head):
        step += 1
        fetched_s, saved_s = fetch_s + HICCUP_S * (step in hiccups), (saves_s or {}).get(step, 0.0)
        now += fetched_s + replay_s + saved_s
        head = behind + now / round_s
        words = keeping_up.applied(40_000, fetched_s, replay_s, saved_s, step, int(head), now)
        if words:
            return words, step
    return None, step


def test_a_link_that_is_too_slow_gets_an_error_with_figures_soon() -> None:
    words, steps = catch_up(fetch_s=3.0, replay_s=0.5, round_s=2.0, behind=500)
    assert words is not None
    assert "an update takes 3.00 s to fetch (40,000 bytes, 13.3 kB/s) and 0.50 s to replay" in words
    assert steps * 3.5 < BAD_WINDOWS * (KEEPING_UP_S + 3.5)


SAVES = {start: dict.fromkeys(range(100 - start, 600, 100), 60.0) for start in (0, 45, 99)}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"fetch_s": 3.0, "replay_s": 0.5, "round_s": 2.0, "behind": 500}, "It needs a faster link"),
        ({"fetch_s": 0.1, "replay_s": 3.0, "round_s": 2.0, "behind": 500}, "It needs a faster machine"),
        ({"fetch_s": 1.5, "replay_s": 0.4, "round_s": 2.0, "behind": 50}, None),  # it gains slowly
        *(({"hiccups": {at}}, None) for at in (250, 299, 348)),
        ({"hiccups": range(0, 1000, 5)}, ""),
        *(
            ({"fetch_s": 0.3, "replay_s": 1.2, "round_s": 10.0, "behind": 400, "saves_s": s}, None)
            for s in SAVES.values()
        ),
    ],
)
def test_a_node_stops_only_if_it_falls_behind_for_good(line: dict[str, Any], said: str | None) -> None:
    given: dict[str, Any] = {"fetch_s": 0.2, "replay_s": 0.01, "round_s": 1.0, "behind": 1000} | line
    words, _ = catch_up(**given)
    assert words is None if said is None else said in str(words) and words is not None
