"""Whether peers are there, on its way to the compute thread: at most one change of each peer waits, however many come.

A peer can begin its line as often as it likes. Each time, all messages that it has not confirmed are sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from thinwire_node.gossip.work import GossipWork
from thinwire_proto.gossip.copies import Message
from thinwire_proto.gossip.iteration import Mix


class Presences:
    """send: sends a message again to a peer that is back. note: takes the decision that follows from an absence."""

    def __init__(
        self, work: GossipWork, send: Callable[[int, Message], None], note: Callable[[Mix | None], None]
    ) -> None:
        self._work = work
        self._send = send
        self._note = note
        self._next: dict[int, bool | None] = {}  # by peer, while a change is under way: the newest after it

    def came(self, peer: int, *, is_present: bool) -> Coroutine[Any, Any, None] | None:
        """Tell the compute thread of a change. Returns what has to be run then; None if it runs already."""
        if peer in self._next:
            self._next[peer] = is_present
            return None
        self._next[peer] = None
        return self._follow(peer, self._queue(peer, is_present))

    def _queue(self, peer: int, is_present: bool) -> asyncio.Future[list[Message]] | asyncio.Future[Mix | None]:
        return self._work.present(peer) if is_present else self._work.absent(peer)

    async def _follow(
        self, peer: int, taking: asyncio.Future[list[Message]] | asyncio.Future[Mix | None] | None
    ) -> None:
        try:
            while taking is not None:
                found = await taking
                following, self._next[peer] = self._next[peer], None
                taking = None if following is None else self._queue(peer, following)
                if not isinstance(found, list):
                    self._note(found)
                elif following is None:  # otherwise the line was lost meanwhile, with all that waited for it
                    for message in found:
                        self._send(peer, message)
        finally:
            del self._next[peer]
