"""Forms a topology from a plan: who stands where, who mixes with whom, since when, and with which weights. Pure.

It takes up to seconds with a thousand members, so it runs on a worker, and the directory waits for it.

An edge that is new costs a snapshot in each direction, as many bytes as 32 iterations of one bit a parameter. So
members stay where they are when others come and go: a place whose member has gone stays a gap, until a newcomer takes
it or the gaps are closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.assignment import Assignment, Turns
from thinwire_proto.gossip.topology import DENSE_NODES_MAX, Layout, Topology, make_topology

Places = tuple[int | None, ...]
"""The member number at each place of the graph; None where there is a gap."""
GAPS_SHARE_MAX = 1 / 8
"""Of all places. Beyond it, gaps are closed: at each of them, the peers of who was there pause in one iteration."""
GAPS_CONTRACTION_MAX = 0.87
"""Gaps are also closed if the contraction would be above this, and above that without gaps. This is about that of the
kind `matching` with sixteen nodes."""


@dataclass(frozen=True)
class Plan:
    """A topology that is due. number: ascending from 1. start: the first iteration in which it holds. members: member
    numbers, ascending. adopting: those that begin with the parameters of a peer. reason: for people."""

    number: int
    start: int
    members: tuple[int, ...]
    adopting: frozenset[int]
    reason: str


Edges = Mapping[tuple[int, int], int]
"""The topology in which each edge began, by the member numbers of its ends, the lower one first."""


@dataclass(frozen=True)
class FormedTopology:
    """cycle: for each iteration of the cycle, the turns of each member, in the order of their places."""

    plan: Plan
    places: Places
    cycle: tuple[tuple[Turns, ...], ...]
    edges: Edges = field(default_factory=dict)

    @cached_property
    def _rows(self) -> Mapping[int, int]:
        return {member: row for row, member in enumerate(present(self.places))}

    def assignment(self, member: int) -> Assignment:
        """The part of a member. Raises KeyError if it is not in the topology."""
        row = self._rows[member]
        cycle = tuple(turns[row] for turns in self.cycle)
        since = {peer: self.edges[_edge(member, peer)] for turns in cycle for peer in turns}
        return Assignment(self.plan.number, self.plan.start, member, cycle, since, member in self.plan.adopting)

    def peers(self, member: int) -> set[int]:
        row = self._rows[member]
        return {peer for turns in self.cycle for peer in turns[row]}


def form(kind: str, plan: Plan, older: FormedTopology | None = None) -> FormedTopology:
    """Form a topology of this kind. older: the one before it; members keep their places, and edges that are in both go
    on. Raises ConfigError if the kind cannot join so many."""
    places = with_gaps(older.places if older else (), plan.members)
    edges = older.edges if older else {}
    closed = without_gaps(places)
    compact = topology_at(kind, closed)
    sparse = _topology_with_gaps(kind, places, compact) if places != closed else None
    return _formed(sparse, plan, places, edges) if sparse else _formed(compact, plan, closed, edges)


def form_at(kind: str, plan: Plan, places: Places, older: Edges) -> FormedTopology:
    """Form a topology whose members stand at these places. older: the edges of the topology before it. Raises
    ConfigError if the kind cannot join them."""
    return _formed(topology_at(kind, places), plan, places, older)


def topology_at(kind: str, places: Places) -> Topology:
    """The graph of this kind through these places, without those where nobody stands."""
    # one seed for the whole run: the kinds that draw at random would otherwise draw all edges anew
    return make_topology(kind, Layout(len(places)), gaps(places))


def _topology_with_gaps(kind: str, places: Places, compact: Topology) -> Topology | None:
    """The topology of members who stay where they are; None if they would mix too little."""
    if len(gaps(places)) > GAPS_SHARE_MAX * len(places):
        return None
    try:
        topology = topology_at(kind, places)
    except ConfigError:
        return None  # a gap parts them
    if topology.nodes > DENSE_NODES_MAX:
        return topology  # computing how well they mix would take too long
    return topology if topology.contraction <= max(GAPS_CONTRACTION_MAX, compact.contraction) else None


def _formed(topology: Topology, plan: Plan, places: Places, older: Edges) -> FormedTopology:
    members = present(places)
    cycle = tuple(
        tuple({members[peer]: weight for peer, weight in row.items()} for row in mixing.rows)
        for mixing in topology.mixings
    )
    edges = {
        _edge(member, peer): older.get(_edge(member, peer), plan.number)
        for turns in cycle
        for member, peers in zip(members, turns, strict=True)
        for peer in peers
    }
    return FormedTopology(plan, places, cycle, edges)


def with_gaps(places: Places, members: Sequence[int]) -> Places:
    """The members, each at its place if it has one. Newcomers take the first gaps, and then new places at the end."""
    staying, placed = set(members), set(places)
    newcomers = [member for member in members if member not in placed]
    kept: list[int | None] = [member if member in staying else None for member in places]
    for place, member in enumerate(kept):
        if member is None and newcomers:
            kept[place] = newcomers.pop(0)
    return (*kept, *newcomers)


def without_gaps(places: Places) -> Places:
    """The members of the last places move into the gaps."""
    closed = list(places)
    for place in range(len(closed)):
        while place < len(closed) and closed[place] is None:
            closed[place] = closed[-1]
            closed.pop()
    return tuple(closed)


def gaps(places: Places) -> list[int]:
    """The places where nobody stands, ascending."""
    return [place for place, member in enumerate(places) if member is None]


def present(places: Places) -> list[int]:
    return [member for member in places if member is not None]


def _edge(one: int, other: int) -> tuple[int, int]:
    return (one, other) if one < other else (other, one)
