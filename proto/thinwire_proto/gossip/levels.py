"""The codec and `every` of a member, from iteration to iteration.

Both ends of an edge have to exchange in the same iterations. So a level holds from an iteration on, which is told to
all before any of them is there. One that hears too late takes the level with its next iteration; until then, turns that
only one end has begun are void. A message names its codec, so copies stay equal in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thinwire_proto.gossip.assignment import Assignment, Turns
from thinwire_proto.gossip.consensus import Level


class Levels:
    """first: holds from iteration 0 on."""

    def __init__(self, first: Level) -> None:
        self._begin: list[tuple[int, Level]] = [(0, first)]

    def take(self, level: Level, start: int, following: int) -> None:
        """Take a level that holds from `start` on. following: the next iteration; what has begun does not change."""
        if level == self._begin[-1][1]:
            return  # told again
        start = max(start, following)
        kept = [(begin, older) for begin, older in self._begin if begin < start]
        self._begin = [*kept, (start, level)]

    def at(self, iteration: int) -> Level:
        """The level that holds in an iteration."""
        return next((level for begin, level in reversed(self._begin) if begin <= iteration), self._begin[0][1])

    def turns(self, assignment: Assignment, iteration: int) -> Turns:
        """The turns of an iteration; none if there is no exchange in it. The cycle goes on by one with each exchange,
        because one of two iterations would leave out half of its edges."""
        every = self.at(iteration).every
        return {} if iteration % every else assignment.turns(iteration // every)

    def forget(self, before: int) -> None:
        """Forget the levels that held only before an iteration."""
        while len(self._begin) > 1 and self._begin[1][0] <= before:
            del self._begin[0]

    def plain(self) -> list[list[Any]]:
        """The levels as lists of numbers and strings."""
        return [[begin, level.codec, level.every] for begin, level in self._begin]

    @classmethod
    def from_plain(cls, plain: Sequence[Sequence[Any]]) -> Levels:
        found = cls(Level(plain[0][1], plain[0][2]))
        found._begin = [(begin, Level(codec, every)) for begin, codec, every in plain]
        return found
