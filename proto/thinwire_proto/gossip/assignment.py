"""The part of a topology that concerns one node: its peers and their weights, in each iteration of the cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
