"""What the tasks of a session know of the swarm, and tell each other."""

from __future__ import annotations

import asyncio

from thinwire_node.exchange.port import AnnouncedRound, Announcement
from thinwire_node.training import pacing


class Situation:
    """`head_step`: how many steps were sealed when the node joined, or since, as long as it catches up."""

    def __init__(self, head_step: int) -> None:
        self.head_step = head_step
        self.newest: Announcement | None = None
        self.changed = asyncio.Event()
        """Set when there may be something else to do; the training clears it before it decides."""
        self.contributed: tuple[int, int] | None = None
        """Term and number of the round that the node contributed to last, if only to say that it has nothing."""
        self.hurry = False
        """A round went on without the node, so it contributes early in the next one."""
        self.leaving = False
        self.doing: pacing.Decision | None = None

    @property
    def round(self) -> AnnouncedRound | None:
        """The round that is open to the node."""
        return self.newest if isinstance(self.newest, AnnouncedRound) else None

    @property
    def has_contributed(self) -> bool:
        """To the round that is open."""
        return self.round is not None and self.contributed == (self.round.term, self.round.number)

    def announced(self, announcement: Announcement) -> None:
        before, self.newest = self.round, announcement
        if before is not None and self.round is not None and before.step < self.round.step:
            self.hurry |= self.contributed != (before.term, before.number)
        self.changed.set()


async def set_or_after(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, or for so long. Not `asyncio.wait_for`: before Python 3.12 that swallows a cancellation which
    comes in the same moment as the event."""
    timer = asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
