"""Updates go out here. One buffer for each update, shared by all followers; a slow follower reads from disk."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

CACHE_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class SealedUpdate:
    """A sealed row, in canonical form, with the body that it names."""

    row: bytes
    body: bytes


class Feed:
    """Sealed updates by step. `read` fetches one from disk; `step` is how many are sealed."""

    def __init__(self, read: Callable[[int], Awaitable[SealedUpdate]], step: int) -> None:
        self._read = read
        self.step = step
        self._sealed = asyncio.Condition()
        self._recent: OrderedDict[int, SealedUpdate] = OrderedDict()
        self._recent_bytes = 0

    async def publish(self, update: SealedUpdate) -> None:
        """The update that leads from θ_step to θ_{step+1} is on disk."""
        self._recent[self.step] = update
        self._recent_bytes += len(update.body)
        while self._recent_bytes > CACHE_BYTES_MAX and len(self._recent) > 1:
            self._recent_bytes -= len(self._recent.popitem(last=False)[1].body)
        async with self._sealed:
            self.step += 1
            self._sealed.notify_all()

    async def get(self, step: int) -> SealedUpdate:
        """The update of a step, as soon as it is sealed."""
        async with self._sealed:
            await self._sealed.wait_for(lambda: self.step > step)
        return self._recent.get(step) or await self._read(step)
