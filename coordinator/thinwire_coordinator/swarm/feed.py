"""Sends updates to followers.

Each update is serialized once, and all followers receive the same bytes. A follower that falls behind the cache reads
from disk, and holds one update at a time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

CACHE_BYTES_MAX = 64 << 20


class EncodedUpdate(Protocol):
    """A sealed row and its body as messages, ready to send. `rpc.update_messages` implements it.

    size: of the body, in bytes.
    """

    @property
    def size(self) -> int: ...

    def parts(self, head_step: int) -> Iterator[bytes]:
        """The messages for a follower, when `head_step` steps are sealed. Nothing is copied for one at the head."""


EncodeUpdate = Callable[[int, bytes, bytes, bytes], EncodedUpdate]
"""Makes the messages of an update from its step, its canonical row, its body, and the signature of the row."""


class Feed:
    """Sealed updates by step, with the newest ones cached in memory.

    read: reads an update from disk. step: the number of sealed updates. cache_bytes_max: bound of the cache, which
    always holds at least one update.
    """

    def __init__(
        self, read: Callable[[int], Awaitable[EncodedUpdate]], step: int, cache_bytes_max: int = CACHE_BYTES_MAX
    ) -> None:
        self._read = read
        self._cache_bytes_max = cache_bytes_max
        self.step = step
        self._sealed = asyncio.Condition()
        self._recent: OrderedDict[int, EncodedUpdate] = OrderedDict()
        self._recent_bytes = 0

    async def publish(self, update: EncodedUpdate) -> None:
        """Publish the update from θ_step to θ_{step+1}, which is on disk."""
        self._recent[self.step] = update
        self._recent_bytes += update.size
        while self._recent_bytes > self._cache_bytes_max and len(self._recent) > 1:
            self._recent_bytes -= self._recent.popitem(last=False)[1].size
        async with self._sealed:
            self.step += 1
            self._sealed.notify_all()

    async def get(self, step: int) -> EncodedUpdate:
        """Return the update of a step; waits until it is sealed."""
        async with self._sealed:
            await self._sealed.wait_for(lambda: self.step > step)
        return self._recent.get(step) or await self._read(step)
