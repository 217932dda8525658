"""A full swarm: which nodes keep their session, and which one is forgotten."""

from __future__ import annotations

import random

from thinwire_coordinator.swarm.members import Members

A, B, C = "a" * 32, "b" * 32, "c" * 32


def members(nodes_max: int = 2) -> Members:
    return Members(nodes_max, random.Random(1))


def test_a_newcomer_takes_the_place_of_the_node_that_was_heard_of_longest_ago() -> None:
    swarm = members()
    first, second = swarm.join(A, "a"), swarm.join(B, "b")
    assert first is not None
    assert second is not None
    assert swarm.join(A, "a") is first  # it came back, and has not attended yet
    assert swarm.join(C, "c") is not None
    assert swarm.of_session(first.session) is first
    assert swarm.of_session(second.session) is None
    assert swarm.by_id.keys() == {A, C}


def test_a_call_shows_that_a_node_is_here() -> None:
    swarm = members()
    first, second = swarm.join(A, "a"), swarm.join(B, "b")
    assert first is not None
    assert second is not None
    swarm.of_session(first.session)  # it probes
    swarm.join(C, "c")
    assert swarm.by_id.keys() == {A, C}


def test_a_node_that_fetches_keeps_its_place_however_long_that_takes() -> None:
    swarm = members()
    first, second = swarm.join(A, "a"), swarm.join(B, "b")
    assert first is not None
    assert second is not None
    first.calls.add("Snapshot")
    swarm.of_session(second.session)
    swarm.join(C, "c")
    assert swarm.by_id.keys() == {A, C}
    assert swarm.join(B, "b") is not None
    assert swarm.by_id.keys() == {A, B}
    second_again = swarm.by_id[B]
    second_again.calls.add("Corpus")
    assert swarm.join(C, "c") is None  # everybody is here
