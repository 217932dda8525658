"""Leases on samples: disjoint runs of positions in the endless stream of passes, handed out in order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lease:
    """`count` positions from `start` on; which sample stands at a position: `thinwire_proto.corpus.sample_at`."""

    start: int
    count: int


class Leases:
    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        """The first position that nobody was given yet."""

    def grant(self, count: int) -> Lease:
        lease = Lease(self.cursor, count)
        self.cursor += count
        return lease
