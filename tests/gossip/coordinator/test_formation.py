"""How a topology follows from the one before it: who comes and goes changes few edges, and members still mix well."""

from __future__ import annotations

import random

import pytest

from thinwire_coordinator.gossip.formation import (
    GAPS_CONTRACTION_MAX,
    FormedTopology,
    Plan,
    form,
    form_at,
    gaps,
    with_gaps,
)
from thinwire_proto.gossip.mixing import Mixing, contraction
from thinwire_proto.gossip.topology import topology_names

UNDIRECTED = topology_names(directed=False)


def plan(number: int, members: tuple[int, ...]) -> Plan:
    return Plan(number, 10 * number, members, frozenset(), "a test")


def new_edges(formed: FormedTopology) -> int:
    return sum(since == formed.plan.number for since in formed.edges.values())


def mixings(formed: FormedTopology) -> list[Mixing]:
    """The weights of each iteration, by the order of the members."""
    row = {member: at for at, member in enumerate(formed.plan.members)}
    found = []
    for place in range(len(formed.cycle)):
        turns = [formed.assignment(member).cycle[place] for member in formed.plan.members]
        rows = tuple({row[peer]: weight for peer, weight in one.items()} for one in turns)
        found.append(Mixing(tuple(1 - sum(one.values()) for one in rows), rows))
    return found


def test_members_keep_their_places_and_newcomers_fill_the_gaps() -> None:
    places = with_gaps((), (0, 1, 2, 3))
    assert places == (0, 1, 2, 3)
    places = with_gaps(places, (0, 2, 3))
    assert places == (0, None, 2, 3)
    assert gaps(places) == [1]
    assert with_gaps(places, (0, 2, 3, 7, 8)) == (0, 7, 2, 3, 8)
    assert with_gaps(places, (0, 2)) == (0, None, 2, None)
    assert with_gaps(places, (5,)) == (5, None, None, None)


def test_a_member_that_goes_makes_no_new_edge_and_the_next_newcomer_only_its_own() -> None:
    first = form("one-peer-exponential", plan(1, tuple(range(16))))
    without = form("one-peer-exponential", plan(2, tuple(member for member in range(16) if member != 5)), first)
    assert new_edges(without) == 0
    assert set(without.edges) == {edge for edge in first.edges if 5 not in edge}
    newcomer = form("one-peer-exponential", plan(3, (*without.plan.members, 16)), without)
    assert {edge for edge, since in newcomer.edges.items() if since == 3} == {(peer, 16) for peer in first.peers(5)}
    assert newcomer.peers(16) == first.peers(5)


def test_the_gap_of_a_ring_is_closed() -> None:
    """It would be a line, which mixes four times more slowly."""
    first = form("ring", plan(1, tuple(range(16))))
    formed = form("ring", plan(2, tuple(member for member in range(16) if member != 5)), first)
    assert formed.places == (0, 1, 2, 3, 4, 15, 6, 7, 8, 9, 10, 11, 12, 13, 14)
    assert new_edges(formed) == 3


@pytest.mark.parametrize("kind", UNDIRECTED)
def test_whoever_comes_and_goes_the_mean_stays_and_members_mix(kind: str) -> None:
    rng = random.Random(1)
    members, following = set(range(20)), 20
    formed = form(kind, plan(1, tuple(sorted(members))))
    for number in range(2, 60):
        for _ in range(rng.randrange(3)):
            members.discard(rng.choice(sorted(members)))
        for _ in range(rng.randrange(3)):
            members.add(following)
            following += 1
        before, formed = formed, form(kind, plan(number, tuple(sorted(members))), formed)
        assert sorted(member for member in formed.places if member is not None) == sorted(members)
        assert all(formed.edges[edge] == since for edge, since in before.edges.items() if edge in formed.edges)
        for mixing in mixings(formed):
            for one, row in enumerate(mixing.rows):
                assert all(mixing.rows[peer][one] == weight for peer, weight in row.items())
        fresh = form(kind, plan(1, tuple(sorted(members))))
        assert contraction(mixings(formed)) <= max(GAPS_CONTRACTION_MAX, contraction(mixings(fresh)) + 0.05)
        assert form_at(kind, formed.plan, formed.places, formed.edges) == formed
