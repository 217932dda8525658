"""Trust: who is suspected, who is banned and for how long, and who never is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ballots import Votes, ballot, empty, sent_by
from thinwire_coordinator.trust.ballots import Ballot, Secret
from thinwire_coordinator.trust.comparison import Comparer
from thinwire_coordinator.trust.evidence import Audited, Cause, Decision, RoundEvidence, Shown, Verdict
from thinwire_coordinator.trust.sequential import ALARM, STEP_MAX
from thinwire_coordinator.trust.standing import BAN_S, BAN_S_MAX, Standing
from thinwire_coordinator.trust.trust import Trust
from thinwire_coordinator.trust.weights import FOUNDERS_ROUNDS, FULL_AFTER, GROUP_SHARE, NEWCOMER, earned

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


def test_colluders_are_not_compared_with_each_other() -> None:
    swarm, rng = Swarm(), np.random.default_rng(1)

    def collude(node: str, honest: list[Ballot]) -> Ballot:
        if node == HOSTILE[0]:
            chosen = np.sort(rng.choice(100_000, 600, replace=False)).astype(np.int64)
            swarm.chosen = ballot(node, chosen, np.ones(600, bool))  # type: ignore[attr-defined]
        return sent_by(node, swarm.chosen)  # type: ignore[attr-defined]

    swarm.play(30, collude)
    assert _suspects(swarm) == set(HOSTILE)
    assert not _suspects(swarm) & set(HONEST)


def test_nearly_equal_votes_are_a_copy() -> None:
    swarm = Swarm()

    def most_of(node: str, honest: list[Ballot]) -> Ballot:
        original = honest[swarm.round % len(honest)]
        kept = np.random.default_rng(swarm.round).random(len(original)) < 0.9
        return ballot(node, original.components[kept], original.positive[kept])

    swarm.play(12, most_of)
    assert all(Cause.COPY in swarm.trust.of(node).suspected for node in HOSTILE)
    assert not _suspects(swarm) & set(HONEST)


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


def test_votes_that_were_not_merged_may_be_sent_again() -> None:
    """A node puts them back into its momentum, so a suspected honest node repeats itself."""
    comparer, votes = Comparer(Secret(7)), Votes(0)
    kept = votes.honest("node")
    for _ in range(3):
        votes.begin()
        ballots = [replace(kept, merged=False), *(votes.honest(node) for node in HONEST)]
        assert not any(one.repeats or one.copy_of for one in comparer.compare(ballots, lambda node: 1.0))
    for may_repeat, repeats in ((False, [False, True, True]), (True, [False] * 3)):
        comparer, found = Comparer(Secret(7), may_repeat=may_repeat), []
        for _ in range(3):
            votes.begin()
            ballots = [kept, *(votes.honest(node) for node in HONEST)]
            found.append(comparer.compare(ballots, lambda node: 1.0)[0].repeats)
        assert found == repeats


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


def test_no_single_round_suspects_anybody() -> None:
    assert 3 * STEP_MAX < ALARM
    trust = Trust()
    worst = Shown("node", -1000.0, copy_of="honest0", repeats=True)
    for number in range(3):
        shown = (*(Shown(node, 50.0) for node in HONEST), worst)
        assert trust.observe(RoundEvidence(number, shown), 0.0)[1] == ()


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


# weights


def test_a_newcomer_begins_low_and_rises() -> None:
    trust = Trust()
    seen: list[float | None] = []
    for number in range(40):
        nodes = HONEST if number < FULL_AFTER else [*HONEST, "new"]
        trust.observe(RoundEvidence(number, tuple(Shown(node, 8.0) for node in nodes)), 0.0)
        seen.append(trust.weights.get("new"))
        assert trust.weight(HONEST[0]) == 1
    assert seen[FULL_AFTER - 1] is None
    first = seen[FULL_AFTER]
    assert first is not None
    assert NEWCOMER < first < 2 * NEWCOMER
    assert seen[-1] == 1


def test_a_thousand_keys_of_one_address_are_worth_little() -> None:
    trust = Trust(8)
    for number in range(FULL_AFTER):
        trust.observe(RoundEvidence(number, tuple(Shown(node, 8.0) for node in HONEST)), 0.0)
    for number in range(1000):
        trust.arrived(f"key{number}", "4:203.0.113", 0.0)
    summed = sum(-(-8 * trust.weight(f"key{number}") // 1) for number in range(1000))
    assert 0 < summed <= GROUP_SHARE * 8 * len(HONEST) + 1


NETWORK = "203.0.113.0/24"


def _run_of_one_network(rounds: int) -> Trust:
    """Two hundred nodes of one network, of which each but the first is left out of one of the first four rounds."""
    trust = Trust(4)
    for node in range(200):
        trust.arrived(f"founder{node}", NETWORK, 0.0)
    for number in range(rounds):
        came = [node for node in range(200) if node == 0 or node % 4 != number]
        trust.observe(RoundEvidence(number, tuple(Shown(f"founder{node}", 0.0) for node in came)), 0.0)
    return trust


@pytest.mark.parametrize("rounds", [1, FULL_AFTER - 1, FULL_AFTER, FULL_AFTER + 1, FULL_AFTER + 9])
def test_the_first_nodes_of_a_run_all_count_though_all_are_of_one_network(rounds: int) -> None:
    trust = _run_of_one_network(rounds)
    least = earned(rounds - 1) / earned(rounds)
    assert min(trust.weight(f"founder{node}") for node in range(200)) >= least


def test_a_newcomer_of_another_network_takes_nothing_from_the_founders() -> None:
    trust = _run_of_one_network(FULL_AFTER)
    trust.arrived("later", "198.51.100.0/24", 0.0)
    assert min(trust.weight(f"founder{node}") for node in range(200)) >= earned(FULL_AFTER - 1)


def test_keys_that_come_later_are_bounded_although_their_network_founded_the_run() -> None:
    trust = _run_of_one_network(FULL_AFTER)
    for number in range(1000):
        trust.arrived(f"key{number}", NETWORK, 0.0)
    founders = sum(-(-4 * trust.weight(f"founder{node}") // 1) for node in range(200))
    keys = sum(-(-4 * trust.weight(f"key{number}") // 1) for number in range(1000))
    assert 0 < keys <= GROUP_SHARE * founders + 1


def _restarted(trust: Trust) -> Trust:
    again = Trust(4, [Standing.from_plain(one.node, one.plain()) for one in trust.standings.values()])
    for node in trust.standings:
        again.arrived(node, NETWORK, 0.0)
    return again


def test_founders_outlive_a_restart_and_newcomers_become_none_by_it() -> None:
    trust = _run_of_one_network(FULL_AFTER)
    for number in range(1000):
        trust.arrived(f"key{number}", NETWORK, 0.0)
    again = _restarted(trust)
    again.arrived("key1000", NETWORK, 0.0)
    assert min(again.weight(f"founder{node}") for node in range(200)) >= earned(FULL_AFTER - 1)
    founders = sum(-(-4 * again.weight(f"founder{node}") // 1) for node in range(200))
    keys = sum(-(-4 * again.weight(f"key{number}") // 1) for number in range(1001))
    assert 0 < keys <= GROUP_SHARE * founders + 1


def test_a_run_that_restarts_before_any_node_has_its_full_weight_still_has_founders() -> None:
    again = _restarted(_run_of_one_network(FULL_AFTER - 4))
    again.arrived("another founder", NETWORK, 0.0)
    assert all(again.of(node).founder for node in ("founder0", "founder199", "another founder"))


@pytest.mark.parametrize("lost", ["time", "suspicion", "another network"])
def test_founders_are_bounded_once_their_time_is_over_or_others_have_a_claim(lost: str) -> None:
    """One of two hundred has earned its full weight, and the others together weigh as much as that one."""
    trust = Trust(4)
    for node in range(200):
        trust.arrived(f"founder{node}", NETWORK, 0.0)
    if lost == "another network":
        trust.arrived("elsewhere", "198.51.100.0/24", 0.0)
    if lost == "suspicion":
        for node in range(1, 200):
            trust.of(f"founder{node}").suspect(Cause.NOISE, "")
            trust.of(f"founder{node}").pardon()
    rounds = FULL_AFTER + (FOUNDERS_ROUNDS if lost == "time" else 1)
    everybody = tuple(f"founder{node}" for node in range(200))
    for number in range(rounds):
        for name in everybody[1:]:
            trust.of(name).seen = number  # they are present, but late in each round
        trust.observe(RoundEvidence(number, (Shown("founder0", 0.0),)), 0.0)
    assert trust.weight("founder0") == 1
    assert sum(trust.weight(node) for node in everybody[1:]) <= 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), min_size=1, max_size=30), st.integers(0, 50))
@settings(max_examples=100, deadline=None)
def test_weights_are_bounded_and_do_not_depend_on_the_order(nodes: list[tuple[str, int]], turn: int) -> None:
    def weights(order: int) -> dict[str, float]:
        kept = [Standing(f"n{place}", group, counted, seen=turn) for place, (group, counted) in enumerate(nodes)]
        trust = Trust(8, kept[::order])
        trust.observe(RoundEvidence(turn), 0.0)
        return dict(trust.weights)

    found = weights(1)
    assert found == weights(-1)
    assert max(found.values()) == 1
    assert all(0 <= weight <= 1 for weight in found.values())
    if all(counted < FULL_AFTER for _, counted in nodes):
        return  # nobody has earned anything, so newcomers are measured by newcomers
    new = {group: {n: c for n, g, c in _numbered(nodes) if g == group and c < FULL_AFTER} for group in "abc"}
    unit = {group: earned(max(counts.values())) if counts else 0.0 for group, counts in new.items()}
    full = sum(counted >= FULL_AFTER for _, counted in nodes)
    for group, counts in new.items():
        bound = max(GROUP_SHARE * (full + sum(unit.values()) - unit[group]), unit[group])
        assert sum(found[node] for node in counts) <= bound + 1 / 16  # rounded to the integers of the wire


def _numbered(nodes: list[tuple[str, int]]) -> list[tuple[str, str, int]]:
    return [(f"n{place}", group, counted) for place, (group, counted) in enumerate(nodes)]


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


def test_a_standing_survives_a_restart() -> None:
    swarm = Swarm()
    swarm.play(9, lambda node, honest: swarm.votes.flipped(node))
    before = swarm.trust.of(HOSTILE[0])
    again = Standing.from_plain(before.node, before.plain())
    assert again.suspected == before.suspected
    assert again.why == before.why
    assert again.bans == before.bans
    assert again.evidence == pytest.approx(before.evidence, abs=0.001)
