"""The assignments and levels that a member knows: which turns it has in an iteration, and with which weights. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from thinwire_proto.gossip.assignment import Assignment, Turns
from thinwire_proto.gossip.consensus import Level
from thinwire_proto.gossip.iteration import Turn
from thinwire_proto.gossip.levels import Levels

LATE_MAX = 16
"""Iterations of an older topology that a member may have begun although a newer one holds."""


class Assignments:
    """level: the first."""

    def __init__(self, level: Level) -> None:
        self._by_topology: dict[int, Assignment] = {}
        self._levels = Levels(level)

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

    def take_level(self, level: Level, start: int, following: int) -> None:
        """See `Levels.take`."""
        self._levels.take(level, start, following)

    def at(self, iteration: int) -> Assignment:
        """The one that holds in an iteration."""
        held = [number for number, one in self._by_topology.items() if one.start <= iteration]
        return self._by_topology[max(held) if held else min(self._by_topology)]

    def level(self, iteration: int) -> Level:
        """The level that holds in an iteration."""
        return self._levels.at(iteration)

    def turns(self, assignment: Assignment, iteration: int) -> Turns:
        """The turns of an iteration, of a level's iterations."""
        return self._levels.turns(assignment, iteration)

    def is_sooner(self, peer: int, older: Assignment, newer: Assignment) -> bool:
        """Whether, from the newer one's start on, the older one has a turn with a peer before the newer one has. Edges
        that a change has not touched have their turns in the same iterations."""
        for iteration in range(newer.start, newer.start + LATE_MAX):
            if peer in self.turns(newer, iteration):
                return False
            if peer in self.turns(older, iteration):
                return True
        return False

    def weight(self, turn: Turn) -> float:
        """Of a turn that this node has begun."""
        return self._levels.turns(self._by_topology[turn.topology], turn.iteration)[turn.peer]

    def may_have(self, turn: Turn, *, is_controlled: bool) -> bool:
        """Whether a peer may have this turn with the node. is_controlled: it may have another level already."""
        held = self._by_topology.get(turn.topology)
        if held is None:
            return True
        return turn.iteration >= held.start and turn.peer in (
            held.since if is_controlled else held.turns(turn.iteration)
        )

    def needed_peers(self, holds: Assignment) -> set[int]:
        """The peers of this assignment and of later ones."""
        return set().union(*(one.since for one in self._by_topology.values() if one.topology >= holds.topology))

    def forget(self, holds: Assignment, iteration: int, kept: Collection[Turn]) -> None:
        """Forget what no turn needs. holds: in this iteration. kept: turns that may still be mixed."""
        self._levels.forget(min([turn.iteration for turn in kept], default=iteration))
        oldest = min([turn.topology for turn in kept], default=holds.topology)
        for number in [number for number in self._by_topology if number < min(oldest, holds.topology)]:
            del self._by_topology[number]

    def plain(self) -> list[Any]:
        """All of it as lists of numbers and strings."""
        return [[assignment.plain() for assignment in self._by_topology.values()], self._levels.plain()]

    def load(self, plain: Sequence[Any]) -> None:
        """Continue from `plain`."""
        assignments, levels = plain
        self._by_topology = {one[0]: Assignment.from_plain(one) for one in assignments}
        self._levels = Levels.from_plain(levels)
