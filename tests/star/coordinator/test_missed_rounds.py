"""A node that has nothing, or comes late, delays the others in few rounds, and is awaited again when it is back."""

from __future__ import annotations

import pytest

from support.round_machine import T, deliver, kinds, machine
from thinwire_coordinator.star.round.machine import (
    Phase,
)
from thinwire_proto.limits import prompt_answer_s, void_lasts_s


def test_nodes_without_contributions_do_not_make_rounds_spin() -> None:
    m = machine()
    m.attend("a", 0.0)
    assert kinds(m.excuse("a", 0.01)) == ["Voided"]
    assert m.deadline == void_lasts_s(T)
    assert m.tick(void_lasts_s(T) - 0.01) == []
    assert kinds(m.tick(void_lasts_s(T))) == ["Opened"]


def test_a_node_that_is_always_late_does_not_slow_the_others_forever() -> None:
    m = machine(wait_for=2)
    m.attend("a", 0.0)
    m.attend("b", 0.0)
    now, waited = 0.0, []
    for number in range(6):
        _, actions = deliver(m, "a", number, now)
        waited.append(actions == [])  # the round stays open because it waits for b
        if not actions:
            now += T + 0.01
            m.tick(now)
        m.heard("b")  # too late, again
        m.sealed(now)
    assert waited == [True, True, False, False, False, False]
    assert deliver(m, "b", 6, now)[0]  # in time at last
    deliver(m, "a", 6, now)
    m.sealed(now)
    assert deliver(m, "a", 7, now) == (True, [])


def test_the_round_after_one_for_which_a_node_had_nothing_waits_for_it() -> None:
    """Otherwise a node that is a little slower than the others would be late in every second round, and without a lease
    in the others."""
    m = machine()
    m.attend("a", 0.0)
    m.attend("b", 0.1)  # the open round does not wait for it
    deliver(m, "a", 0, 1.0)
    m.sealed(1.1)
    assert deliver(m, "b", 0, 1.2) == (False, [])
    assert m.excuse("b", 1.3, has_nothing=True) == []
    assert kinds(deliver(m, "a", 1, 2.0)[1]) == ["Gathered"]
    m.sealed(2.1)
    assert deliver(m, "a", 2, 3.0) == (True, [])
    assert kinds(deliver(m, "b", 2, 3.5)[1]) == ["Gathered"]


@pytest.mark.parametrize("answers", ["vab", "avb", "abv"])
def test_a_killed_node_that_comes_back_during_a_round_is_awaited_although_it_had_nothing_at_first(answers: str) -> None:
    m = machine(wait_for=3)
    for node in "abv":
        m.attend(node, 0.0)
    m.depart("v", 0.5)  # killed: this round waited for it
    for number in (0, 1):
        deliver(m, "a", number, number + 0.6)
        if number:
            m.attend("v", 1.6)
        deliver(m, "b", number, number + 0.7)
        m.sealed(number + 0.8)
    assert deliver(m, "v", 1, 1.9) == (False, [])
    for node in answers:
        if node == "v":
            m.excuse("v", 2.0, has_nothing=True)
        else:
            deliver(m, node, 2, 2.0)
    m.sealed(2.1)
    assert m.awaited == 3


def test_a_node_that_answers_soon_after_each_opening_delays_rounds_by_no_more() -> None:
    m = machine(wait_for=2)
    for node in "ab":
        m.attend(node, 0.0)
    now, prompt_s, last_s = 0.0, prompt_answer_s(T), []
    for number in range(5):
        deliver(m, "a", number, now)
        if m.phase is Phase.OPEN:
            last_s.append(prompt_s if number < 3 else 2 * prompt_s)
            m.excuse("b", now + last_s[-1], has_nothing=True)
            now += last_s[-1]
        m.sealed(now)
    assert last_s == [prompt_s, prompt_s, prompt_s, 2 * prompt_s, 2 * prompt_s]
    assert m.awaited == 1


def test_colluding_nodes_that_answer_just_before_the_deadline_stretch_few_rounds() -> None:
    m = machine(wait_for=4)
    for node in "abcd":
        m.attend(node, 0.0)
    stretched, now = 0, 0.0
    for number in range(20):
        deliver(m, "a", number, now + 1)
        if m.phase is Phase.OPEN:
            stretched += 1
            for node in "bcd":
                m.excuse(node, now + T, has_nothing=True)
        now += T
        m.sealed(now)
    assert stretched <= 2 * 3
