"""Whether a node left, or was lost. One that leaves closes its streams and then says so, and a lost one never does: so
whoever is gone has a moment to say it."""

from __future__ import annotations

import asyncio

from thinwire_coordinator.swarm.events import Events, NodeWent
from thinwire_coordinator.swarm.members import Member
from thinwire_proto.limits import LAST_WORD_S


class Presence:
    """Counts and tells each departure once."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._silent: dict[str, asyncio.TimerHandle] = {}  # by node: gone, and it did not say so yet

    def gone(self, member: Member) -> None:
        """Its stream has ended."""
        if member.leaving:
            self._events.tell(NodeWent(member.node_id, lost=False))
        else:
            loop = asyncio.get_running_loop()
            self._silent[member.node_id] = loop.call_later(LAST_WORD_S, self.back, member)

    def left(self, member: Member) -> None:
        """It says that it leaves."""
        if (timer := self._silent.pop(member.node_id, None)) is not None:
            timer.cancel()
            self._events.tell(NodeWent(member.node_id, lost=False))

    def back(self, member: Member) -> None:
        """It joins anew, or its moment is over: if it was gone without a word, it was lost."""
        if (timer := self._silent.pop(member.node_id, None)) is not None:
            timer.cancel()
            self._events.tell(NodeWent(member.node_id, lost=True))
