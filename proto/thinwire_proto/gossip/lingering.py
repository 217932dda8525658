"""The time for which an edge stays that a topology has ended. Pure.

The problem: when a topology ends an edge, one end may have mixed a turn whose message the other end has not got,
because a line was lost meanwhile. If the other forgets the edge, it never mixes that turn, and the mean of all nodes
moves.

The sketch: the edge stays until nothing is open: this node has mixed, or knows to be void, all turns that it has sent
for, and the peer has confirmed its messages for all others. A peer that has died confirms nothing, so an edge stays for
LINGER_ITERATIONS at most, and at most LINGERING_MAX of them do. An edge that begins anew waits for its older one so
long too, and the turns of the new one are void meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from thinwire_proto.contract.exchanges.gossip import LINGERING_MAX

LINGER_ITERATIONS = 32


class Lingering:
    """By peer, the iteration in which an edge was found to have ended, with something open."""

    def __init__(self) -> None:
        self._began: dict[int, int] = {}

    def stays(self, peer: int, iteration: int, *, is_settled: bool) -> bool:
        """Whether an edge that has ended stays in this iteration. is_settled: whether nothing of it is open."""
        if is_settled:
            return False
        place = (self._began.setdefault(peer, iteration), peer)
        newer = sum((began, other) > place for other, began in self._began.items())
        return iteration < place[0] + LINGER_ITERATIONS and newer < LINGERING_MAX

    def forget(self, peer: int) -> None:
        """The edge is given up."""
        self._began.pop(peer, None)

    def plain(self) -> list[tuple[int, int]]:
        """All of it as numbers."""
        return sorted(self._began.items())

    @classmethod
    def from_plain(cls, plain: Iterable[tuple[int, int]]) -> Lingering:
        """Continue from `plain`."""
        found = cls()
        found._began = dict(plain)
        return found
