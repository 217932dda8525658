"""Where the members of a run stand in its graph. Pure.

An edge that is new costs a snapshot in each direction, as many bytes as 32 iterations of one bit a parameter. So
members stay where they are when others come and go: a place whose member has gone stays a gap, until a newcomer takes
it or the gaps are closed.
"""

from __future__ import annotations

from collections.abc import Sequence

Places = tuple[int | None, ...]
"""The member number at each place of the graph; None where there is a gap."""


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
