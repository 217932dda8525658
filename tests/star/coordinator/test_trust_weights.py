"""How much a node's votes weigh: newcomers, the founders of a run, and many keys of one network."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire_coordinator.hall.events import Cause
from thinwire_coordinator.star.round.admission import weight
from thinwire_coordinator.star.trust.evidence import RoundEvidence, Shown
from thinwire_coordinator.star.trust.standing import Standing
from thinwire_coordinator.star.trust.trust import PRESENT_ROUNDS, Trust
from thinwire_coordinator.star.trust.weights import (
    FOUNDERS_ROUNDS,
    FULL_AFTER,
    GROUP_SHARE,
    NEWCOMER,
    earned,
    weights_of,
)

HONEST = [f"honest{number}" for number in range(12)]
NETWORK = "203.0.113.0/24"


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


def _votes(trust: Trust, nodes: Iterable[str], weight_max: int = 8) -> int:
    """How much full contributions of these nodes weigh together."""
    return sum(weight(8, 8, weight_max, trust.weight(node)) for node in nodes)


def _established() -> Trust:
    trust = Trust(8)
    for place, node in enumerate(HONEST):
        trust.arrived(node, f"10.0.{place}.0/24", 0.0)
    for number in range(FULL_AFTER):
        trust.observe(RoundEvidence(number, tuple(Shown(node, 8.0) for node in HONEST)), 0.0)
    return trust


@pytest.mark.parametrize("attend", [False, True])
def test_keys_that_hold_back_are_bounded_when_all_contribute_at_once(attend: bool) -> None:
    trust, keys = _established(), [f"key{number}" for number in range(200)]
    for key in keys:
        trust.arrived(key, NETWORK, 0.0)
    back = FULL_AFTER + PRESENT_ROUNDS + 2
    for first, last in ((FULL_AFTER, back), (back + 1, back + PRESENT_ROUNDS + 2)):
        for number in range(first, last):
            trust.opened(number, [*HONEST, *keys] if attend else HONEST, 0.0)
            trust.observe(RoundEvidence(number, tuple(Shown(node, 8.0) for node in HONEST)), 0.0)
        assert _votes(trust, keys) <= GROUP_SHARE * _votes(trust, HONEST)
        trust.observe(RoundEvidence(last, tuple(Shown(node, 8.0) for node in [*HONEST, *keys])), 0.0)
        assert 0 < _votes(trust, keys) <= GROUP_SHARE * _votes(trust, HONEST)


def test_a_slow_newcomer_that_attends_keeps_its_weight() -> None:
    trust = _established()
    trust.arrived("slow", NETWORK, 0.0)
    for number in range(FULL_AFTER, FULL_AFTER + 3 * PRESENT_ROUNDS):
        trust.opened(number, [*HONEST, "slow"], 0.0)
        trust.observe(RoundEvidence(number, tuple(Shown(node, 8.0) for node in HONEST)), 0.0)
    assert trust.weight("slow") == NEWCOMER


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


def test_a_founder_that_was_cleared_does_not_end_the_time_of_the_founders_by_a_restart() -> None:
    trust = _run_of_one_network(FULL_AFTER - 1)
    trust.of("founder1").suspect(Cause.NOISE, "its votes agree with nobody")
    trust.pardon("founder1", 0.0)
    again = _restarted(trust)
    again.arrived("colleague", NETWORK, 0.0)
    assert again.of("colleague").founder
    assert not again.of("founder1").counts_as_founder


def test_nodes_of_an_earlier_process_are_not_present_until_they_join_again() -> None:
    """Volunteers of last month do not raise the bound for the newcomers of a network."""
    gone = [f"gone{number}" for number in range(300)]
    kept = [Standing(node, counted=FULL_AFTER).plain() | {"node": node} for node in [*HONEST, *gone]]
    trust = Trust(8, [Standing.from_plain(plain.pop("node"), plain) for plain in kept])
    keys = [f"key{number}" for number in range(200)]
    for place, node in enumerate(HONEST):
        trust.arrived(node, f"10.0.{place}.0/24", 0.0)
    for key in keys:
        trust.arrived(key, NETWORK, 0.0)
    assert 0 < _votes(trust, keys) <= GROUP_SHARE * _votes(trust, HONEST)
    trust.opened(5000, [*HONEST, *keys], 0.0)
    assert 0 < _votes(trust, keys) <= GROUP_SHARE * _votes(trust, HONEST)
    assert trust.weight(gone[0]) == 1  # if it comes back


def test_a_suspicion_of_an_earlier_process_holds_before_anybody_has_joined() -> None:
    suspected = Standing("hostile")
    suspected.suspect(Cause.NOISE, "its votes agree with nobody")
    trust = Trust(8, [suspected])
    assert trust.weight("hostile") == 0
    assert trust.weight("somebody") == 1


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


@pytest.mark.parametrize(("newcomers", "counted"), [(39, 0), (38, 1), (38, 8), (25, 1), (15, 4), (200, 15)])
def test_newcomers_keep_the_bound_once_their_weights_are_rounded_up(newcomers: int, counted: int) -> None:
    honest = [Standing(f"honest{place}", f"10.0.{place}.0/24", FULL_AFTER) for place in range(10)]
    keys = [Standing(f"key{place}", NETWORK, counted) for place in range(newcomers)]
    weighed = dict.fromkeys((key.node for key in keys), 0)
    for turn in range(newcomers):
        found = weights_of([*honest, *keys], 0.0, turn, 8)
        votes = {key.node: weight(8, 8, 8, found[key.node]) for key in keys}
        assert 30 < sum(votes.values()) <= GROUP_SHARE * 80
        assert max(votes.values()) - min(votes.values()) <= 1
        for node, one in votes.items():
            weighed[node] += one
    assert len(set(weighed.values())) == 1  # they take turns


def test_a_lone_newcomer_is_rounded_up_however_few_the_others_are() -> None:
    found = weights_of([Standing("honest", "10.0.0.0/24", FULL_AFTER), Standing("new", NETWORK, 7)], 0.0, 0, 8)
    assert found["new"] == earned(7)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), min_size=1, max_size=30),
    st.integers(0, 50),
    st.sampled_from([1, 4, 8, 100]),
)
@settings(max_examples=100, deadline=None)
def test_weights_are_bounded_and_do_not_depend_on_the_order(
    nodes: list[tuple[str, int]], turn: int, weight_max: int
) -> None:
    def weights(order: int) -> dict[str, float]:
        kept = [Standing(f"n{place}", group, counted, seen=turn) for place, (group, counted) in enumerate(nodes)]
        trust = Trust(weight_max, kept[::order])
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
        others = full + sum(unit.values()) - unit[group]
        one = weight(8, 8, weight_max, unit[group])
        votes = sum(weight(8, 8, weight_max, found[node]) for node in counts)
        assert votes <= max(GROUP_SHARE * others * weight_max + 1e-6, one)


def _numbered(nodes: list[tuple[str, int]]) -> list[tuple[str, str, int]]:
    return [(f"n{place}", group, counted) for place, (group, counted) in enumerate(nodes)]


def test_turns_do_not_move_within_a_round() -> None:
    """The evidence of a round comes after the next one has opened."""
    trust, honest, keys = Trust(8), [f"h{number}" for number in range(10)], [f"s{number:03}" for number in range(200)]
    for number, node in enumerate(honest):
        trust.arrived(node, f"10.0.{number}", 0.0)
    shown = tuple(Shown(node, 8.0) for node in honest)
    for number in range(1, 41):
        trust.observe(RoundEvidence(number, shown), 0.0)
    for node in keys:
        trust.arrived(node, "66.6.6", 0.0)
    trust.opened(42, honest + keys, 0.0)
    early = {node: trust.weight(node) for node in keys}
    trust.observe(RoundEvidence(41, shown), 0.0)
    assert {node: trust.weight(node) for node in keys} == early
    trust.opened(43, honest + keys, 0.0)
    assert {node: trust.weight(node) for node in keys} != early
