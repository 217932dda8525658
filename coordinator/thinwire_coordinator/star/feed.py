"""Sends updates to followers.

Each update is serialized once, and all followers receive the same bytes. A follower that falls behind the cache reads
from disk, and holds one update at a time. What followers hold beside the cache shares a budget of memory: one that
reads from disk waits for room, and one that is overtaken by the cache while it sends has to find room at once, or ends.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from thinwire_coordinator.hall.byte_budget import ByteBudget, Reservation
from thinwire_coordinator.star.messages import UpdateMessages
from thinwire_proto.contract import Contract
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.wire.codec import update_bytes_max

CACHE_BYTES_MAX = 64 << 20
CATCH_UP_BYTES_MAX = 128 << 20
"""Updates outside the cache that are being sent, together; but always two."""
READ_MAX = 2
"""Updates that are read from disk before it is known whether there is room for them."""


class NotWanted(Exception):
    """The follower takes no more updates."""


@dataclass
class Loan:
    """An update that a follower holds. room: for it in the budget, unless the cache holds it anyway."""

    update: UpdateMessages
    in_cache: Callable[[], bool]
    room: Reservation

    def may_stay(self) -> bool:
        """Whether the follower may hold the update on, though it may have left the cache meanwhile."""
        return self.in_cache() or self.room.taken or self.room.take_now()


class Feed:
    """Sealed updates by step, with the newest ones cached in memory.

    read: reads an update from disk. step: the number of sealed updates. cache_bytes_max: bound of the cache, which
    always holds at least one update. largest: update that it may read, in bytes.
    """

    def __init__(
        self,
        read: Callable[[int], Awaitable[UpdateMessages]],
        step: int,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        largest: int = 0,
    ) -> None:
        self._read = read
        self._cache_bytes_max = cache_bytes_max
        self.step = step
        self._moved = asyncio.Event()
        self._recent: OrderedDict[int, UpdateMessages] = OrderedDict()
        self._recent_bytes = 0
        self._reading = asyncio.Semaphore(READ_MAX)
        self._room = ByteBudget(max(CATCH_UP_BYTES_MAX, 2 * largest))

    async def publish(self, update: UpdateMessages) -> None:
        """Publish the update from θ_step to θ_{step+1}, which is on disk."""
        self._recent[self.step] = update
        self._recent_bytes += update.size
        while self._recent_bytes > self._cache_bytes_max and len(self._recent) > 1:
            self._recent_bytes -= self._recent.popitem(last=False)[1].size
        self.step += 1
        self.wake()

    def grow(self, largest: int) -> None:
        """Have room for two updates of so many bytes."""
        self._room.grow(2 * largest)

    def wake(self) -> None:
        """Let each call that waits look at its `unwanted`."""
        self._moved.set()
        self._moved = asyncio.Event()

    @asynccontextmanager
    async def lend(self, step: int, unwanted: Callable[[], object] = lambda: None) -> AsyncIterator[Loan]:
        """Lend the update of a step to a follower; waits until it is sealed, and until there is room for it. Raises
        NotWanted as soon as `unwanted` is true at a `wake`."""
        while self.step <= step and not unwanted():
            await self._moved.wait()
        if unwanted():
            raise NotWanted
        update = self._recent.get(step)
        if update is not None:
            loan = Loan(update, lambda: step in self._recent, self._room.reservation(update.size))
        else:
            async with self._reading:
                update = await self._read(step)
                loan = Loan(update, lambda: False, self._room.reservation(update.size))
                await loan.room.take()
        del update
        try:
            yield loan
        finally:
            loan.room.release()


def largest_update(contract: Contract) -> int:
    """Upper bound on the size of any update of the run, also of those before amendments."""
    layout, found = TileLayout(contract.parameters), 0
    before: Contract | None = contract
    while before is not None:
        found = max(found, update_bytes_max(layout, before.demo.magnitude, before.demo.update_levels))
        before = before.before
    return found
