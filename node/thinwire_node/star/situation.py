"""The state that the tasks of a session share."""

from __future__ import annotations

import asyncio

from thinwire_node.exchange.port import AnnouncedRound, Announcement
from thinwire_node.star import pacing


class Situation:
    """A session's knowledge of the swarm.

    head_step: the number of sealed steps when the node joined. It grows while the node catches up."""

    def __init__(self, head_step: int) -> None:
        self.head_step = head_step
        self.newest: Announcement | None = None
        self.changed = asyncio.Event()
        """Set when a new decision may be needed. The training loop clears it before each decision."""
        self.contributed: tuple[int, int] | None = None
        """Term and number of the newest round that the node contributed to, with or without samples."""
        self.hurry = False
        """True after a round closed without this node. The node then contributes early in the next round."""
        self.leaving = False
        self.finishing = False
        """Whether the node leaves after the contribution at hand."""
        self.resting = False
        """Whether the node leaves without waiting for an outcome."""
        self.doing: pacing.Decision | None = None

    @property
    def round(self) -> AnnouncedRound | None:
        """The round that is open to the node, or None."""
        return self.newest if isinstance(self.newest, AnnouncedRound) else None

    @property
    def has_contributed(self) -> bool:
        return self.round is not None and self.contributed == (self.round.term, self.round.number)

    def announced(self, announcement: Announcement) -> None:
        before, self.newest = self.round, announcement
        if before is not None and self.round is not None and before.step < self.round.step:
            self.hurry |= self.contributed != (before.term, before.number)
        self.changed.set()
