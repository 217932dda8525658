"""The states of a contribution, and what a round may hold."""

from __future__ import annotations

import itertools

import pytest

from support.sealed_run import signed
from thinwire_coordinator.star.round.contributions import (
    TRANSITIONS,
    Contribution,
    ContributionEvent,
    ContributionState,
    Round,
)

NODE, SESSION, NAME = "n", "s", b"name"


def round_of(contributions_max: int = 2) -> Round:
    return Round(3, 1, opened=0.0, deadline=10.0, contributions_max=contributions_max, awaited={NODE}, others=())


def contribution(node: str = NODE, session: str = SESSION) -> Contribution:
    return Contribution(node, session, weight=1, samples=1, loss=1.0, began=0.0, signed=signed(0))


def brought_to(state: ContributionState) -> tuple[Round, Contribution]:
    """A round with one contribution in this state."""
    current, one = round_of(), contribution()
    current.begin(one)
    if state is not ContributionState.ARRIVING:
        current.arrived(one, NAME, 5)
    if state is ContributionState.ACCEPTED:
        current.accept(one)
    if state is ContributionState.ANSWERED:
        current.refuse(one)
    assert one.state is state
    return current, one


def happen(current: Round, one: Contribution, event: ContributionEvent) -> None:
    match event:
        case ContributionEvent.ARRIVED:
            current.arrived(one, b"other", 6)
        case ContributionEvent.PASSED:
            current.accept(one)
        case ContributionEvent.REFUSED:
            current.refuse(one)
        case ContributionEvent.ROUND_OVER:
            current.over(one)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(ContributionState, ContributionEvent)))
def test_the_table_is_what_happens_and_anything_else_raises_and_changes_nothing(
    state: ContributionState, event: ContributionEvent
) -> None:
    current, one = brought_to(state)
    before = vars(one).copy(), list(current.accepted), current.has_whole_from(NODE), current.named(b"other")
    if (state, event) in TRANSITIONS:
        happen(current, one, event)
        assert one.state is TRANSITIONS[state, event]
        return
    with pytest.raises(RuntimeError):
        happen(current, one, event)
    assert (vars(one), current.accepted, current.has_whole_from(NODE), current.named(b"other")) == before


@pytest.mark.parametrize("state", [ContributionState.ARRIVING, ContributionState.CHECKING, ContributionState.ACCEPTED])
def test_whatever_may_yet_be_counted_takes_a_place(state: ContributionState) -> None:
    current, _ = brought_to(state)
    assert not current.full
    current.begin(contribution("other"))
    assert current.full
    with pytest.raises(RuntimeError):
        current.begin(contribution("third"))


def test_a_refused_contribution_gives_its_place_back_and_is_still_known_by_name() -> None:
    current, one = brought_to(ContributionState.ANSWERED)
    assert current.named(NAME) is one
    assert not current.has_from(NODE, SESSION)
    for node in "ab":
        current.begin(contribution(node))
    assert current.full


def test_a_node_has_one_whole_contribution_in_a_round_at_most() -> None:
    current, _ = brought_to(ContributionState.CHECKING)
    second = contribution(session="the next session")
    current.begin(second)
    with pytest.raises(RuntimeError, match="already has a contribution"):
        current.arrived(second, b"other", 6)
    assert second.state is ContributionState.ARRIVING
