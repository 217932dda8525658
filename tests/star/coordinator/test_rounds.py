"""Tests of the round machine in synthetic time: when a round opens and ends, and with which reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.round_machine import T, deliver, kinds, machine
from thinwire_coordinator.star.round.machine import (
    TRANSITIONS,
    Gathered,
    Opened,
    Phase,
    RoundEvent,
    Voided,
)
from thinwire_proto.contract import RoundSpec


def test_the_first_round_waits_for_the_number_of_nodes_that_the_organizer_wants() -> None:
    m = machine(wait_for=3)
    assert m.attend("a", 0.0) == m.attend("b", 0.0) == []
    assert m.missing_nodes == 1
    assert kinds(m.attend("c", 0.0)) == ["Opened"]
    m.depart("b", 1.0)
    m.depart("c", 1.0)
    deliver(m, "a", 0, 1.0)
    assert kinds(m.sealed(1.0)) == ["Opened"]  # later rounds need only min_contributions


def test_a_stopped_machine_notes_what_is_sealed_and_opens_and_ends_no_round() -> None:
    m = machine()
    m.attend("a", 0.0)
    assert kinds(deliver(m, "a", 0, 1.0)[1]) == ["Gathered"]
    m.stop()
    assert m.sealed(2.0) == []
    assert (m.step, m.next_round, m.round, m.deadline) == (1, 1, None, None)
    assert m.attend("b", 3.0) == m.tick(4.0) == []

    open_ = machine()
    open_.attend("a", 0.0)
    open_.stop()
    assert open_.deadline is None
    assert open_.depart("a", 1.0) == open_.tick(2 * T) == []


def test_a_paused_machine_opens_no_round_and_ends_the_open_one() -> None:
    m = machine()
    m.attend("a", 0.0)
    assert m.hold(1.0, held=True) == []
    assert kinds(deliver(m, "a", 0, 2.0)[1]) == ["Gathered"]
    assert m.sealed(2.0) == m.attend("b", 3.0) == m.tick(10 * T) == []
    assert (m.step, m.deadline) == (1, None)
    assert kinds(m.hold(20 * T, held=False)) == ["Opened"]


def test_an_amended_machine_opens_the_next_round_under_the_new_terms() -> None:
    m = machine()
    m.attend("a", 0.0)
    assert kinds(deliver(m, "a", 0, 2.0)[1]) == ["Gathered"]
    longer = RoundSpec(length_ms=int(3 * T * 1000), min_contributions=2)
    assert m.amend(longer, 100, 3.0) == []
    assert m.sealed(3.0) == []  # it waits for two nodes now
    opened = m.attend("b", 4.0)
    assert [(one.step, one.deadline) for one in opened if isinstance(one, Opened)] == [(1, 4.0 + 3 * T)]


def test_what_is_amended_after_a_void_round_holds_for_the_next_one() -> None:
    m = machine(minimum=2)
    m.attend("a", 0.0)
    m.attend("b", 0.0)
    assert kinds(m.tick(2 * T)) == ["Voided"]  # and the next one opens with the next tick
    m.amend(RoundSpec(length_ms=int(3 * T * 1000)), 100, 2 * T)
    opened = m.round
    assert opened is not None
    assert opened.deadline - opened.opened == 3 * T


def test_steps_that_are_added_to_a_complete_run_open_a_round() -> None:
    m = machine(steps=1)
    m.attend("a", 0.0)
    deliver(m, "a", 0, 2.0)
    assert m.sealed(3.0) == []
    assert m.complete
    assert m.amend(RoundSpec(), 1, 4.0) == []
    assert m.complete
    assert kinds(m.amend(RoundSpec(), 2, 5.0)) == ["Opened"]
    assert not m.complete


def test_a_node_that_missed_a_round_is_not_awaited_until_it_delivers() -> None:
    m = machine(wait_for=2)
    m.attend("a", 0.0)
    m.attend("b", 0.0)
    deliver(m, "a", 0, 1.0)
    m.tick(T + 1)
    (opened,) = m.sealed(12.0)
    assert isinstance(opened, Opened)
    assert opened.nodes == ("a", "b")  # b still gets a lease
    assert kinds(deliver(m, "a", 1, 13.0)[1]) == ["Gathered"]
    assert deliver(m, "b", 1, 13.5) == (False, [])  # late, but b is alive
    m.sealed(14.0)
    assert deliver(m, "a", 2, 15.0) == (True, [])  # this round waits for b again
    assert kinds(deliver(m, "b", 2, 16.0)[1]) == ["Gathered"]


def test_no_round_waits_for_a_node_without_weight_until_it_is_counted() -> None:
    m = machine(wait_for=2)
    m.attend("a", 0.0)
    m.attend("b", 0.0)
    deliver(m, "a", 0, 1.0)
    m.disregard("b")  # its votes were refused just before the deadline, as those of a suspected node
    assert kinds(m.excuse("b", T - 0.1)) == ["Gathered"]
    now = T
    for number in range(1, 6):
        m.sealed(now)
        m.heard("b")
        assert kinds(deliver(m, "a", number, now + 1)[1]) == ["Gathered"]  # at once, while b is still at work
        m.disregard("b")
        now += 2
    m.depart("b", now)
    m.attend("b", now, has_weight=False)  # nor after a new session
    m.sealed(now)
    assert deliver(m, "b", 6, now + 1) == (True, [])  # it has its weight again
    assert kinds(deliver(m, "a", 6, now + 2)[1]) == ["Gathered"]
    m.sealed(now + 3)
    assert deliver(m, "a", 7, now + 4) == (True, [])
    assert m.awaited == 1


def test_a_round_in_which_nobody_counts_waits_for_everybody() -> None:
    m = machine()
    m.attend("a", 0.0)
    m.disregard("a")
    deliver(m, "a", 0, 1.0)
    m.disregard("a")
    m.sealed(2.0)
    assert m.awaited == 1


def test_with_too_few_nodes_left_the_round_is_void_at_once_and_the_next_one_waits() -> None:
    m = machine(minimum=2)
    m.attend("a", 0.0)
    m.attend("b", 0.0)
    deliver(m, "a", 0, 1.0)
    assert m.depart("b", 2.0) == [Voided(0, "nobody is left to wait for and 1 of 2 contributions arrived")]
    assert (m.phase, m.missing_nodes) == (Phase.WAITING, 1)
    assert kinds(m.attend("b", 50.0)) == ["Opened"]


def test_at_pace_clock_rounds_end_at_the_deadline_and_keep_the_beat() -> None:
    m = machine(pace="clock")
    (first,) = m.attend("a", 0.0)
    assert isinstance(first, Opened)
    assert deliver(m, "a", 0, 1.0) == (True, [])  # no node is awaited any more, but the round ends only at the beat
    assert kinds(m.tick(T + 0.01)) == ["Gathered"]
    (second,) = m.sealed(T + 3.0)
    assert isinstance(second, Opened)
    assert second.deadline == 2 * T  # sealing took three seconds of this round
    (void,) = m.tick(2 * T + 0.01)
    assert isinstance(void, Voided)
    (third,) = m.tick(2 * T + 0.02)
    assert isinstance(third, Opened)
    assert third.deadline == 3 * T


def test_after_a_pause_longer_than_a_round_the_beat_restarts() -> None:
    m = machine(pace="clock")
    m.attend("a", 0.0)
    deliver(m, "a", 0, 1.0)
    m.tick(T + 0.01)
    (opened,) = m.sealed(5 * T)
    assert isinstance(opened, Opened)
    assert opened.deadline == 6 * T


def test_an_impossible_event_raises_and_changes_nothing() -> None:
    m = machine()
    with pytest.raises(RuntimeError, match="SEALED cannot happen in phase WAITING"):
        m.sealed(0.0)
    assert (m.phase, m.step) == (Phase.WAITING, 0)
    assert len(TRANSITIONS) == len(RoundEvent)


events = st.lists(
    st.tuples(
        st.sampled_from(["attend", "depart", "excuse", "deliver", "tick", "sealed"]),
        st.sampled_from("abcd"),
        st.integers(0, 2),
        st.floats(0, 7),
    ),
    max_size=80,
)


@given(events, st.sampled_from(["barrier", "clock"]), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_under_any_events_rounds_ascend_and_steps_follow_sealed_rounds(
    happenings: list[tuple[str, str, int, float]], pace: str, minimum: int
) -> None:
    m = machine(pace=pace, minimum=minimum, steps=1000)
    now, last_round, sealed = 0.0, -1, 0
    for what, node, behind, pause in happenings:
        now += pause
        if what == "sealed":
            if m.phase is not Phase.SEALING:
                continue
            actions, sealed = m.sealed(now), sealed + 1
        elif what == "deliver":
            _, actions = deliver(m, node, m.next_round - 1 - behind, now)
        elif what == "tick":
            actions = m.tick(now)
        else:
            actions = getattr(m, what)(node, now)
        for action in actions:
            if isinstance(action, Opened):
                assert action.round == last_round + 1
                assert action.deadline > now
                last_round = action.round
            elif isinstance(action, Gathered):
                assert action.round == last_round
                assert len(set(action.nodes)) == len(action.nodes) >= minimum
        assert m.step == sealed
        assert m.phase is not Phase.OPEN or m.deadline is not None
        opens_next = any(isinstance(action, Voided) for action in actions)
        assert what != "tick" or opens_next or m.deadline is None or m.deadline >= now


def test_a_contribution_exactly_at_the_deadline_is_accepted_and_one_after_it_is_not() -> None:
    for late_s, accepted in ((0.0, True), (1e-6, False)):
        m = machine(wait_for=2)
        m.attend("a", 0.0)
        m.attend("b", 0.0)
        assert deliver(m, "a", 0, T + late_s)[0] is accepted


def test_a_round_that_cannot_be_sealed_is_void_and_the_next_one_has_the_same_step() -> None:
    m = machine()
    m.attend("a", 0.0)
    assert kinds(deliver(m, "a", 0, 1.0)[1]) == ["Gathered"]
    (void, *_) = m.not_sealed("the ledger is locked", 20.0)
    assert void == Voided(0, "the ledger is locked")
    actions = m.tick(30.0) if m.phase is Phase.WAITING else []
    assert (m.phase, m.step, m.next_round) == (Phase.OPEN, 0, 2)
    assert all(isinstance(action, Opened) for action in actions)
    with pytest.raises(RuntimeError):
        m.not_sealed("no round is being sealed", 31.0)
