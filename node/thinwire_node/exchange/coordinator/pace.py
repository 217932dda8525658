"""Limits how often a node takes messages of its coordinator's streams."""

from __future__ import annotations

import asyncio
import contextlib

AT_ONCE, MESSAGES_PER_S, EARNED = 100, 25.0, 4
"""Messages of a stream that a node takes at once, and lastingly a second, and more for each contribution of its own. A
round has a few."""


class Pace:
    """Limits how often a stream's messages are taken. The rest waits in the connection, which is bounded.

    A coordinator may announce the same round again and again, and each announcement makes the node decide anew. Those
    that come with the node's own progress are not held back, however short the rounds are."""

    def __init__(self) -> None:
        self._left, self._at = float(AT_ONCE), asyncio.get_running_loop().time()
        self._earned = asyncio.Event()

    def earn(self) -> None:
        """Make room for the messages that follow a contribution of trained samples."""
        self._refill(EARNED)
        self._earned.set()

    async def wait(self) -> None:
        """Wait until the next message may be taken."""
        self._refill(-1)
        while self._left < 0:
            self._earned.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._earned.wait(), -self._left / MESSAGES_PER_S)
            self._refill(0)

    def _refill(self, more: int) -> None:
        now = asyncio.get_running_loop().time()
        self._left = min(AT_ONCE, self._left + (now - self._at) * MESSAGES_PER_S + more)
        self._at = now
