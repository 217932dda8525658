"""Tests of the admission rules and of the reasons for a refusal."""

from __future__ import annotations

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


def judge(claim: ContributionClaim, facts: RoundFacts | None = FACTS) -> Reason | None:
    refusal = check_header(claim, 2, 8, facts)
    return refusal.reason if refusal else None


def test_a_valid_claim_passes() -> None:
    assert judge(CLAIM) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"round": 8}, Reason.FUTURE_ROUND),
        ({"term": 3}, Reason.FUTURE_ROUND),
        ({"round": 6}, Reason.LATE),
        ({"term": 1}, Reason.LATE),
        ({"term": 1, "round": 900}, Reason.LATE),
        ({"step": 4, "base_step": 4}, Reason.BASE_AGE),
        ({"base_step": 4}, Reason.BASE_AGE),
        ({"step": 6, "base_step": 6}, Reason.BASE_AGE),
        ({"step": 5, "base_step": 6}, Reason.BASE_AGE),
        ({"samples": 0}, Reason.NOTHING_TRAINED),
        ({"samples": 9}, Reason.OVER_LEASE),
        ({"payload_bytes": 1001}, Reason.MALFORMED),
    ],
)
def test_claims_that_do_not_fit_the_round(changes: dict[str, Any], reason: Reason) -> None:
    assert judge(replace(CLAIM, **changes)) == reason


def test_a_claim_without_a_lease_or_a_second_claim_is_refused() -> None:
    assert judge(CLAIM, replace(FACTS, leased_samples=None)) == Reason.NO_LEASE
    assert judge(CLAIM, replace(FACTS, contributed=True)) == Reason.DUPLICATE


@pytest.mark.parametrize(("samples", "expected"), [(1, 1), (2, 1), (3, 2), (15, 8), (16, 8)])
def test_weight_follows_the_samples_and_is_never_zero(samples: int, expected: int) -> None:
    assert weight(samples, 16, 8) == expected


@pytest.mark.parametrize(("step", "base", "fine"), [(5, 4, True), (4, 4, True), (5, 3, False), (4, 3, False)])
def test_a_base_may_be_as_old_as_the_contract_says(step: int, base: int, fine: bool) -> None:
    reason = judge(replace(CLAIM, step=step, base_step=base), replace(FACTS, base_age_max=1))
    assert reason == (None if fine else Reason.BASE_AGE)


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


def test_a_node_that_joins_again_gets_a_new_session() -> None:
    members = Members(2)
    first = members.join(key_of("a").public, "ann")
    assert first is not None
    member, secret = first
    again = members.join(key_of("a").public, "ann")
    assert again is not None
    assert again[0] is member
    assert again[1] != secret
    assert list(members.by_session) == [member.session]


def test_a_full_swarm_forgets_absent_nodes_and_refuses_others() -> None:
    members = Members(2)
    for letter in "ab":
        joined = members.join(key_of(letter).public, letter)
        assert joined is not None
        joined[0].announcements = object()  # type: ignore[assignment] # the node attends
    assert members.join(key_of("c").public, "c") is None
    members.by_id[key_of("a").public.node_id].announcements = None
    assert members.join(key_of("c").public, "c") is not None
    assert {member.name for member in members.by_id.values()} == {"b", "c"}
