"""Peers' confirmations on their way to the compute thread: at most one for each peer, however many come at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class Confirmations:
    """take: takes the confirmation of a peer's message and all earlier ones. Raises PayloadError."""

    def __init__(self, take: Callable[[int, int], Awaitable[object]]) -> None:
        self._take = take
        self._newest: dict[int, int] = {}  # by peer, while one is being taken

    def came(self, peer: int, sequence: int) -> bool:
        """Note one. Returns whether `take_all` must be called for the peer."""
        is_under_way = peer in self._newest
        self._newest[peer] = max(sequence, self._newest.get(peer, 0))
        return not is_under_way

    async def take_all(self, peer: int) -> None:
        """Take the newest, and those that come meanwhile. Raises PayloadError."""
        taken = -1
        try:
            while (newest := self._newest[peer]) > taken:
                await self._take(peer, newest)
                taken = newest
        finally:
            del self._newest[peer]
