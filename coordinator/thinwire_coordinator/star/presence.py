"""Tells whether a node left or was lost.

A node that leaves closes its streams and then calls Leave; a lost node never calls it. So the decision waits
LAST_WORD_S seconds after the stream of a node has ended.
"""

from __future__ import annotations

import asyncio

from thinwire_coordinator.hall.events import Events, NodeWent
from thinwire_coordinator.hall.members import Member
from thinwire_proto.limits import LAST_WORD_S


class Presence:
    """Emits one NodeWent event for each departure."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._silent: dict[str, asyncio.TimerHandle] = {}  # nodes without a stream that have not called Leave

    def gone(self, member: Member) -> None:
        """Note that the stream of a member has ended."""
        if member.leaving:
            self._events.tell(NodeWent(member.node_id, lost=False))
        else:
            loop = asyncio.get_running_loop()
            self._silent[member.node_id] = loop.call_later(LAST_WORD_S, self.back, member)

    def left(self, member: Member) -> None:
        """Note that a member has called Leave."""
        if (timer := self._silent.pop(member.node_id, None)) is not None:
            timer.cancel()
            self._events.tell(NodeWent(member.node_id, lost=False))

    def back(self, member: Member) -> None:
        """Note that a member joins again, or that its time is over. If its stream had ended, it was lost."""
        if (timer := self._silent.pop(member.node_id, None)) is not None:
            timer.cancel()
            self._events.tell(NodeWent(member.node_id, lost=True))
