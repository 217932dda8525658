"""A full swarm: which nodes keep their session, and which one is forgotten."""

from __future__ import annotations

import random

from support.swarm_bench import key_of
from thinwire_coordinator.hall.members import Members

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
