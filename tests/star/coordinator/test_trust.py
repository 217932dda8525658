"""Trust: who is suspected, who is banned and for how long, and who never is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ballots import Votes, ballot, empty, sent_by
from thinwire_coordinator.hall.events import Cause, Verdict
from thinwire_coordinator.star.trust.ballots import Ballot, Secret
from thinwire_coordinator.star.trust.comparison import Comparer
from thinwire_coordinator.star.trust.evidence import Audited, Decision, RoundEvidence, Shown
from thinwire_coordinator.star.trust.standing import BAN_S, BAN_S_MAX
from thinwire_coordinator.star.trust.trust import Trust
from thinwire_coordinator.star.trust.weights import FULL_AFTER

HONEST = [f"honest{number}" for number in range(12)]
HOSTILE = [f"hostile{number}" for number in range(4)]
ROUND_S = 10.0


class Swarm:
    """Rounds of ballots. A hostile contribution is made from those of the honest nodes."""

    def __init__(self, seed: int = 0) -> None:
        self.votes = Votes(seed)
        self.trust = Trust()
        self.comparer = Comparer(Secret(7))
        self.decisions: list[Decision] = []
        self.round = 0

    def play(self, rounds: int, hostile: Callable[[str, list[Ballot]], Ballot]) -> None:
        for _ in range(rounds):
            self.votes.begin()
            honest = [self.votes.honest(node) for node in HONEST]
            self.observe([*honest, *(hostile(node, honest) for node in HOSTILE)])

    def observe(self, ballots: Sequence[Ballot]) -> None:
        shown = self.comparer.compare(ballots, self.trust.weight)
        _, made = self.trust.observe(RoundEvidence(self.round, shown), self.round * ROUND_S)
        self.decisions += made
        self.round += 1


def _suspects(swarm: Swarm) -> set[str]:
    return {node for node, standing in swarm.trust.standings.items() if standing.suspected}


def _earlier(swarm: Swarm) -> Callable[[str, list[Ballot]], Ballot]:
    """Sends what a node itself sent in its first round, again and again."""
    first: dict[str, Ballot] = {}
    return lambda node, honest: first.setdefault(node, swarm.votes.honest(node))


ATTACKS: dict[str, tuple[set[Cause], Callable[[Swarm], Callable[[str, list[Ballot]], Ballot]]]] = {
    "flipped": ({Cause.AGAINST}, lambda swarm: lambda node, honest: swarm.votes.flipped(node)),
    "random": ({Cause.NOISE}, lambda swarm: lambda node, honest: swarm.votes.random(node)),
    "copies": ({Cause.COPY}, lambda swarm: lambda node, honest: sent_by(node, honest[swarm.round % len(honest)])),
    "nothing": ({Cause.EMPTY}, lambda swarm: lambda node, honest: empty(node)),
    "again": ({Cause.REPEAT}, _earlier),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_quarter_of_hostile_nodes_has_no_weight_within_50_rounds(attack: str) -> None:
    causes, make = ATTACKS[attack]
    swarm = Swarm()
    hostile = make(swarm)
    while _suspects(swarm) < set(HOSTILE) and swarm.round < 50:
        swarm.play(1, hostile)
    assert _suspects(swarm) == set(HOSTILE)
    assert {cause for node in HOSTILE for cause in swarm.trust.of(node).suspected} >= causes
    assert all(swarm.trust.weight(node) == 0 for node in HOSTILE)
    assert all(swarm.trust.weight(node) > 0 for node in HONEST)
    assert {decision.node for decision in swarm.decisions} == set(HOSTILE)


def test_colluders_that_agree_on_half_of_their_votes_are_found() -> None:
    """The other half is honest. Whoever of them comes first in a round passes for the original, so all take turns."""
    swarm = Swarm()
    for number in range(40):
        swarm.votes.begin()
        honest, agreed = [swarm.votes.honest(node) for node in HONEST], swarm.votes.random("agreed")
        kept = agreed.components[: len(agreed) // 2]
        hostile = []
        for place in range(len(HOSTILE)):
            own = swarm.votes.honest(HOSTILE[(number + place) % len(HOSTILE)])
            rest = own.components[~np.isin(own.components, kept)][len(kept) :]
            components = np.sort(np.concatenate([kept, rest]))
            positive = np.isin(components, own.components[own.positive])
            hostile.append(ballot(own.node, components, positive))
        swarm.observe([*honest, *hostile])
    assert _suspects(swarm) == set(HOSTILE)
    assert not any(Cause.COPY in swarm.trust.of(node).evidence for node in HONEST)


def test_a_node_with_other_data_is_not_banned_and_an_audit_vouches_for_it() -> None:
    trust = Trust()
    others = [Shown(node, 8.0) for node in HONEST]
    for number in range(60):
        trust.observe(RoundEvidence(number, (*others, Shown("other", 0.5))), number * ROUND_S)
    assert list(trust.of("other").suspected) == [Cause.NOISE]
    assert trust.weight("other") == 0
    assert trust.of("other").bans == 0
    assert trust.whom_to_audit([*HONEST, "other"], 0.5) == "other"
    for number in range(60, 80):
        audits = (Audited("other", 2.0), Audited(HONEST[number % 12], 2.0))
        trust.observe(RoundEvidence(number, (*others, Shown("other", 0.5)), audits=audits), number * ROUND_S)
    assert not trust.of("other").suspected
    assert trust.weight("other") > 0


@pytest.mark.parametrize("cause", [Cause.AGAINST, Cause.COPY, Cause.MISMATCH, Cause.NOISE])
def test_suspected_nodes_are_audited_first_and_then_those_audited_least(cause: Cause) -> None:
    trust = Trust()
    trust.of("suspected").suspect(cause, "a reason")
    trust.of("suspected").audits, trust.of("audited").audits = 2, 1
    nodes = ["audited", "new", "suspected"]
    assert {trust.whom_to_audit(nodes, draw / 10) for draw in range(10)} == {"suspected"}
    assert {trust.whom_to_audit(nodes[:2], draw / 10) for draw in range(10)} == {"new"}


def test_audits_find_a_node_that_agrees_but_does_not_compute() -> None:
    trust = Trust()
    found: list[Decision] = []
    for number in range(40):
        audits = (Audited("lazy", 0.0), Audited(HONEST[number % 12], 2.0), Audited(HONEST[(number + 1) % 12], 2.0))
        shown = tuple(Shown(node, 8.0) for node in [*HONEST, "lazy"])
        found += trust.observe(RoundEvidence(number, shown, audits=audits), number * ROUND_S)[1]
    assert {(decision.node, decision.cause) for decision in found} == {("lazy", Cause.AUDIT)}
    assert trust.weight("lazy") == 0


def test_bans_come_after_suspicion_and_grow_and_end() -> None:
    trust, now, lengths = Trust(), 0.0, []
    for number in range(400):
        shown = (*(Shown(node, 8.0) for node in HONEST), Shown("hostile", -8.0))
        for decision in trust.observe(RoundEvidence(number, shown), now)[1]:
            if decision.verdict is Verdict.BANNED:
                lengths.append(decision.until - now)
                assert "contradict" in decision.reason
                assert trust.banned_for("hostile", now) == lengths[-1]
                now = decision.until
                assert trust.banned_for("hostile", now) == 0
        if not lengths:
            assert trust.banned_for("hostile", now) == 0
    assert lengths[:4] == [BAN_S, 2 * BAN_S, 4 * BAN_S, 8 * BAN_S]
    assert lengths[-1] == BAN_S_MAX
    assert trust.weight("hostile") == 0


def _oppose(trust: Trust, number: int, now: float, honest: Sequence[str] = HONEST) -> list[Verdict]:
    """A round of honest nodes and of hostile ones that contradict them. Returns the verdicts on one of these."""
    shown = (*(Shown(node, 8.0) for node in honest), *(Shown(node, -8.0) for node in HOSTILE))
    return [one.verdict for one in trust.observe(RoundEvidence(number, shown), now)[1] if one.node == HOSTILE[0]]


def test_a_node_comes_back_from_a_ban_as_far_from_the_next_one_as_suspicion_is_from_a_ban() -> None:
    trust, now, found = Trust(), 0.0, list[tuple[Verdict, int]]()
    for number in range(40):
        found += [(verdict, number) for verdict in _oppose(trust, number, now)]
        now = max(now, trust.of(HOSTILE[0]).banned_until)
    (_, suspected), (_, first), (_, second), *_ = found
    assert [verdict for verdict, _ in found[:3]] == [Verdict.SUSPECTED, Verdict.BANNED, Verdict.BANNED]
    assert second - first >= first - suspected > 1


def test_a_node_has_earned_nothing_in_the_round_in_which_it_is_suspected() -> None:
    trust, number = Trust(), 0
    while not _oppose(trust, number, 0.0):
        number += 1
    assert trust.of(HOSTILE[0]).suspected
    assert trust.of(HOSTILE[0]).counted == 0


def test_votes_without_weight_do_not_say_what_is_usual() -> None:
    trust, number = Trust(), 0
    while not _oppose(trust, number, 0.0):
        number += 1
    few = HONEST[: len(HOSTILE) - 1]
    assert any(Verdict.BANNED in _oppose(trust, number + more, 0.0, few) for more in range(1, 20))


def test_a_node_that_is_in_order_again_counts_as_a_newcomer() -> None:
    swarm = Swarm()
    swarm.play(12, lambda node, honest: sent_by(node, honest[0]))
    assert _suspects(swarm) == set(HOSTILE)
    swarm.play(40, lambda node, honest: swarm.votes.honest(node))
    assert not _suspects(swarm)
    cleared = [decision for decision in swarm.decisions if decision.verdict is Verdict.CLEARED]
    assert {decision.node for decision in cleared} == set(HOSTILE)


def test_the_organizer_overrules() -> None:
    swarm = Swarm()
    swarm.play(20, lambda node, honest: swarm.votes.flipped(node))
    swarm.trust.pardon(HOSTILE[0], 200.0)
    assert swarm.trust.weight(HOSTILE[0]) > 0
    assert swarm.trust.banned_for(HOSTILE[0], 200.0) == 0
    assert swarm.trust.of(HOSTILE[0]).pardoned == 1


def test_wrong_held_out_losses_make_a_node_a_newcomer_that_is_asked_no_more() -> None:
    trust, decisions = Trust(), list[Decision]()
    for number in range(FULL_AFTER):
        trust.observe(RoundEvidence(number, tuple(Shown(node, 8.0) for node in HONEST)), number * ROUND_S)
    liar, faulty, good, *_ = HONEST
    assert all(trust.is_established(node, 0.0) for node in HONEST)
    assert not trust.is_established("stranger", 0.0)
    for number in range(4):
        answers = ((liar, True), (faulty, number == 0), (good, False))
        decisions += trust.observe(RoundEvidence(0, held_out=answers), 0.0)[1]
    assert [(one.node, one.verdict, one.cause) for one in decisions] == [(liar, Verdict.LOWERED, Cause.HELD_OUT)]
    assert [trust.is_established(node, 0.0) for node in (liar, faulty, good)] == [False, True, True]
    assert not trust.of(liar).suspected  # its votes may be good


# outages


def test_silence_of_one_node_makes_it_a_newcomer_and_never_bans_it() -> None:
    trust = Trust()
    for number in range(200):
        shown = tuple(Shown(node, 8.0) for node in HONEST)
        trust.observe(RoundEvidence(number, shown, silent=("lost",)), number * ROUND_S)
    assert trust.of("lost").bans == 0
    assert not trust.of("lost").suspected
    assert trust.of("lost").counted == 0


@given(
    st.lists(
        st.tuples(st.integers(5, 12), st.sampled_from(["silent", "mismatched", "malformed", "empty"])), max_size=60
    )
)
@settings(max_examples=50, deadline=None)
def test_an_outage_that_hits_many_nodes_punishes_nobody(outages: list[tuple[int, str]]) -> None:
    trust = Trust()
    for number, (count, kind) in enumerate(outages):
        hit, well = tuple(HONEST[:count]), HONEST[count:]
        shown = [Shown(node, 8.0) for node in well]
        if kind == "empty":
            shown += [Shown(node, empty=True) for node in hit]
        failed: dict[str, Any] = {} if kind == "empty" else {kind: hit}
        evidence = RoundEvidence(number, tuple(shown), **failed)
        assert trust.observe(evidence, number * ROUND_S)[1] == ()
    assert all(not standing.suspected and not standing.bans for standing in trust.standings.values())


@pytest.mark.parametrize("kind", ["mismatched", "malformed", "empty"])
def test_one_node_of_two_is_no_outage(kind: str) -> None:
    trust = Trust()
    for number in range(40):
        shown = (Shown("good", 8.0), *((Shown("bad", empty=True),) if kind == "empty" else ()))
        failed: dict[str, Any] = {} if kind == "empty" else {kind: ("bad",)}
        trust.observe(RoundEvidence(number, shown, **failed), number * ROUND_S)
    assert trust.of("bad").suspected
    assert not trust.of("good").suspected


# evidence


@given(st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_the_order_of_evidence_does_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rounds = [[Shown(node, float(rng.normal(3, 4))) for node in [*HONEST, *HOSTILE]] for _ in range(30)]

    def play(order: int) -> object:
        trust = Trust()
        made = [trust.observe(RoundEvidence(n, tuple(shown[::order])), n * 10.0)[1] for n, shown in enumerate(rounds)]
        return made, {node: standing.plain() for node, standing in trust.standings.items()}

    first, again = play(1), play(-1)
    assert first[0] == again[0]  # type: ignore[index]
    assert first[1] == again[1]  # type: ignore[index]
