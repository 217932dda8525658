"""Members of a full swarm: which nodes keep their session, which one is forgotten, and whose claims pass."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from support.swarm_bench import key_of
from thinwire_coordinator.hall.members import Members
from thinwire_coordinator.star.round.admission import (
    ContributionClaim,
    RoundFacts,
    check_header,
    weight,
    why_drop_momentum,
)
from thinwire_proto.wire.reasons import Reason

A, B, C = (key_of(letter).public for letter in "abc")


def names(swarm: Members) -> set[str]:
    return {member.name for member in swarm.by_id.values()}


def members(nodes_max: int = 2) -> Members:
    return Members(nodes_max, random.Random(1))


def test_a_newcomer_takes_the_place_of_the_node_that_was_heard_of_longest_ago() -> None:
    swarm = members()
    first, second = swarm.join(A, "a"), swarm.join(B, "b")
    assert first is not None
    assert second is not None
    again = swarm.join(A, "a")  # it came back, and has not attended yet
    assert again is not None
    assert again[0] is first[0]
    assert swarm.join(C, "c") is not None
    assert swarm.of_secret(again[1]) is first[0]
    assert swarm.of_secret(first[1]) is None  # its first session is over
    assert swarm.of_secret(second[1]) is None
    assert names(swarm) == {"a", "c"}


def test_a_node_that_fetches_keeps_its_place_however_long_that_takes() -> None:
    swarm = members()
    first, second = swarm.join(A, "a"), swarm.join(B, "b")
    assert first is not None
    assert second is not None
    first[0].calls.add("Snapshot")
    swarm.of_secret(second[1])
    swarm.join(C, "c")
    assert names(swarm) == {"a", "c"}
    assert swarm.join(B, "b") is not None
    assert names(swarm) == {"a", "b"}
    second_again = swarm.by_id[B.node_id]
    second_again.calls.add("Corpus")
    assert swarm.join(C, "c") is None  # everybody is here


def test_the_members_hold_no_secret_of_a_session() -> None:
    swarm = members()
    joined = swarm.join(A, "a")
    assert joined is not None
    assert joined[1] not in repr(swarm)


CLAIM = ContributionClaim(
    session="s",
    term=2,
    round=7,
    step=5,
    base_step=5,
    fingerprint=0,
    samples=8,
    trained_through=None,
    payload_bytes=1000,
)
FACTS = RoundFacts(round=7, step=5, base_age_max=0, leased_samples=8, contributed=False, payload_bytes_max=1000)


@pytest.mark.parametrize(
    ("changes", "facts", "reason"),
    [
        ({}, {}, None),
        ({"round": 8}, {}, Reason.FUTURE_ROUND),
        ({"term": 3}, {}, Reason.FUTURE_ROUND),
        ({"round": 6}, {}, Reason.LATE),
        ({"term": 1}, {}, Reason.LATE),
        ({"term": 1, "round": 900}, {}, Reason.LATE),
        ({"step": 4, "base_step": 4}, {}, Reason.BASE_AGE),
        ({"base_step": 4}, {}, Reason.BASE_AGE),
        ({"step": 6, "base_step": 6}, {}, Reason.BASE_AGE),
        ({"step": 5, "base_step": 6}, {}, Reason.BASE_AGE),
        ({"step": 5, "base_step": 4}, {"base_age_max": 1}, None),
        ({"step": 4, "base_step": 4}, {"base_age_max": 1}, None),
        ({"step": 5, "base_step": 3}, {"base_age_max": 1}, Reason.BASE_AGE),
        ({"step": 4, "base_step": 3}, {"base_age_max": 1}, Reason.BASE_AGE),
        ({"samples": 0}, {}, Reason.NOTHING_TRAINED),
        ({"samples": 9}, {}, Reason.OVER_LEASE),
        ({"payload_bytes": 1001}, {}, Reason.MALFORMED),
        ({}, {"leased_samples": None}, Reason.NO_LEASE),
        ({}, {"contributed": True}, Reason.DUPLICATE),
    ],
)
def test_a_claim_passes_or_says_why_it_does_not_fit_the_round(
    changes: dict[str, Any], facts: dict[str, Any], reason: Reason | None
) -> None:
    refusal = check_header(replace(CLAIM, **changes), 2, 8, replace(FACTS, **facts))
    assert (refusal.reason if refusal else None) == reason


@pytest.mark.parametrize(("samples", "expected"), [(1, 1), (2, 1), (3, 2), (15, 8), (16, 8)])
def test_weight_follows_the_samples_and_is_never_zero(samples: int, expected: int) -> None:
    assert weight(samples, 16, 8) == expected


@pytest.mark.parametrize(
    ("kept", "holds_lease", "counted_since", "why"),
    [
        (False, False, 0, ""),
        (True, True, 0, ""),
        (True, False, 0, "away for more than 100 steps"),
        (True, True, 1, "is in an update, or may still get into one"),
    ],
)
def test_which_nodes_may_keep_their_momentum(kept: bool, holds_lease: bool, counted_since: int, why: str) -> None:
    said = why_drop_momentum(kept=kept, holds_lease=holds_lease, counted_since=counted_since, age_max=100)
    assert why in said
    assert bool(why) == bool(said)


@pytest.mark.parametrize("kept", [False, True])
def test_nobody_keeps_a_momentum_of_steps_that_were_given_up(kept: bool) -> None:
    said = why_drop_momentum(kept=kept, holds_lease=True, counted_since=0, age_max=100, went_back=True)
    assert ("has gone back to an earlier step" in said) is kept
