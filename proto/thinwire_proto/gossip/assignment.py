"""The part of a topology that concerns one node: its peers and their weights, in each iteration of the cycle."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire_proto.gossip.iteration import Turn

Turns = Mapping[int, float]
"""The peers of an iteration, by member number, and their weights."""


@dataclass(frozen=True)
class Assignment:
    """topology: its number, ascending from 1. start: the first iteration in which it holds. member: the node's own
    number, which is given once in a run. cycle: the turns of each iteration of the cycle, which counts from iteration
    0: if it began anew with each topology, a run in which nodes come and go would use its first edges alone. since: for
    each peer, the topology in which this edge began; both ends began their copies there. adopts: the node begins with
    the parameters of the first peer that it hears."""

    topology: int
    start: int
    member: int
    cycle: tuple[Turns, ...]
    since: Mapping[int, int]
    adopts: bool = False

    @property
    def length(self) -> int:
        """Iterations of the cycle."""
        return len(self.cycle)

    def turns(self, iteration: int) -> Turns:
        """The turns of an iteration."""
        return self.cycle[iteration % self.length]

    def plain(self) -> list[Any]:
        """The assignment as lists of numbers."""
        cycle = [sorted(turns.items()) for turns in self.cycle]
        return [self.topology, self.start, self.member, cycle, sorted(self.since.items()), self.adopts]

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> Assignment:
        topology, start, member, cycle, since, adopts = plain
        return cls(topology, start, member, tuple(dict(turns) for turns in cycle), dict(since), adopts)


LATE_MAX = 16
"""Iterations of an older topology that a member may have begun although a newer one holds."""


class Assignments:
    def __init__(self) -> None:
        self._by_topology: dict[int, Assignment] = {}

    @property
    def topology(self) -> int:
        """The number of the newest one; 0 without one."""
        return max(self._by_topology, default=0)

    @property
    def newest(self) -> Assignment | None:
        return self._by_topology.get(self.topology)

    @property
    def first_start(self) -> int:
        """The iteration from which the oldest one holds."""
        return self._by_topology[min(self._by_topology)].start

    def add(self, assignment: Assignment, kept: Collection[Turn]) -> None:
        """Take a newer one. Those that will never hold are forgotten. kept: turns that may still be mixed."""
        self._by_topology[assignment.topology] = assignment
        needed = {turn.topology for turn in kept} | {assignment.topology}
        for older in [*self._by_topology.values()]:
            if older.start >= assignment.start and older.topology not in needed:
                del self._by_topology[older.topology]

    def at(self, iteration: int) -> Assignment:
        """The one that holds in an iteration."""
        held = [number for number, one in self._by_topology.items() if one.start <= iteration]
        return self._by_topology[max(held) if held else min(self._by_topology)]

    def is_sooner(self, peer: int, older: Assignment, newer: Assignment) -> bool:
        """Whether, from the newer one's start on, the older one has a turn with a peer before the newer one has. Edges
        that a change has not touched have their turns in the same iterations."""
        for iteration in range(newer.start, newer.start + LATE_MAX):
            if peer in newer.turns(iteration):
                return False
            if peer in older.turns(iteration):
                return True
        return False

    def weight(self, turn: Turn) -> float:
        """Of a turn that this node has begun."""
        return self._by_topology[turn.topology].turns(turn.iteration)[turn.peer]

    def may_have(self, turn: Turn) -> bool:
        """Whether a peer may have this turn with the node."""
        held = self._by_topology.get(turn.topology)
        return held is None or (turn.iteration >= held.start and turn.peer in held.turns(turn.iteration))

    def needed_peers(self, holds: Assignment) -> set[int]:
        """The peers of this assignment and of later ones."""
        return set().union(*(one.since for one in self._by_topology.values() if one.topology >= holds.topology))

    def forget(self, holds: Assignment, kept: Collection[Turn]) -> None:
        """Forget what no turn needs. holds: now. kept: turns that may still be mixed."""
        oldest = min([turn.topology for turn in kept], default=holds.topology)
        for number in [number for number in self._by_topology if number < min(oldest, holds.topology)]:
            del self._by_topology[number]

    def plain(self) -> list[Any]:
        """All of it as lists of numbers and strings."""
        return [assignment.plain() for assignment in self._by_topology.values()]

    def load(self, plain: Sequence[Any]) -> None:
        """Continue from `plain`."""
        self._by_topology = {one[0]: Assignment.from_plain(one) for one in plain}
