"""Forms a topology from a plan: who mixes with whom, since when, and with which weights. Pure.

It takes up to seconds with a thousand members, so it runs on a worker, and the directory waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from thinwire_proto.gossip.assignment import Assignment, Turns
from thinwire_proto.gossip.topology import Layout, make_topology


@dataclass(frozen=True)
class Plan:
    """A topology that is due. number: ascending from 1. start: the first iteration in which it holds. members: member
    numbers, ascending; the topology's node i is the i-th of them. adopting: those that begin with the parameters of a
    peer. reason: for people."""

    number: int
    start: int
    members: tuple[int, ...]
    adopting: frozenset[int]
    reason: str


Edges = Mapping[tuple[int, int], int]
"""The topology in which each edge began, by the member numbers of its ends, the lower one first."""


@dataclass(frozen=True)
class FormedTopology:
    """cycle: for each iteration of the cycle, the turns of each member, in the order of `plan.members`."""

    plan: Plan
    cycle: tuple[tuple[Turns, ...], ...]
    edges: Edges = field(default_factory=dict)

    @cached_property
    def _places(self) -> Mapping[int, int]:
        return {member: place for place, member in enumerate(self.plan.members)}

    def assignment(self, member: int) -> Assignment:
        """The part of a member. Raises KeyError if it is not in the topology."""
        place = self._places[member]
        cycle = tuple(turns[place] for turns in self.cycle)
        since = {peer: self.edges[_edge(member, peer)] for turns in cycle for peer in turns}
        return Assignment(self.plan.number, self.plan.start, member, cycle, since, member in self.plan.adopting)

    def peers(self, member: int) -> set[int]:
        """All members with which a member ever has a turn."""
        place = self._places[member]
        return {peer for turns in self.cycle for peer in turns[place]}


def form(kind: str, plan: Plan, older: Edges) -> FormedTopology:
    """Form a topology of this kind. older: the edges of the topology before it, which go on where they are in both.

    The kinds that draw at random draw by the topology's number. Raises ConfigError if the kind cannot join so many.
    """
    members = plan.members
    topology = make_topology(kind, Layout(len(members), seed=plan.number))
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
    return FormedTopology(plan, cycle, edges)


def _edge(one: int, other: int) -> tuple[int, int]:
    return (one, other) if one < other else (other, one)
