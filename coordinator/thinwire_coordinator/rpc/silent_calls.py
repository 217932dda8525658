"""Calls of strangers that were admitted and whose first message has not come yet. They give way to the next stranger.

Otherwise whoever opens calls and sends nothing would fill the room of those who want to join. An honest caller sends
its message with the call, so it is silent for less than a round trip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from thinwire_coordinator.access.callers import Caller

Result = TypeVar("Result")


class Silence:
    """Of one call, until its first message."""

    def __init__(self, caller: Caller, calls: SilentCalls) -> None:
        self.caller = caller
        self.gave_way = asyncio.Event()
        self._calls = calls

    async def until(self, message: Awaitable[Result]) -> Result:
        """Wait for a message of the call. Raises TimeoutError if the call has to give way before its first one."""
        if not self._calls.silent(self):
            return await message
        coming, leaving = asyncio.ensure_future(message), asyncio.ensure_future(self.gave_way.wait())
        try:
            await asyncio.wait((coming, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                raise asyncio.TimeoutError
            self._calls.spoke(self)
            return coming.result()
        finally:
            leaving.cancel()
            coming.cancel()


class SilentCalls:
    """All silent calls of strangers, the oldest first."""

    def __init__(self) -> None:
        self._calls: dict[Silence, None] = {}

    def open(self, caller: Caller) -> Silence:
        silence = Silence(caller, self)
        if caller.node_id is None:
            self._calls[silence] = None
        return silence

    def silent(self, silence: Silence) -> bool:
        return silence in self._calls

    def spoke(self, silence: Silence) -> None:
        self._calls.pop(silence, None)

    def close(self, silence: Silence) -> bool:
        """The call has ended. Return whether it still had its place."""
        self._calls.pop(silence, None)
        return not silence.gave_way.is_set()

    def give_way(self, network: str | None) -> Caller | None:
        """Take the place of the oldest call, of a network if one is given. Return whose it was; None without one."""
        found = next((one for one in self._calls if network in (None, one.caller.network)), None)
        if found is None:
            return None
        del self._calls[found]
        found.gave_way.set()
        return found.caller
