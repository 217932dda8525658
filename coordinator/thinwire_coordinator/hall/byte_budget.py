"""A budget of memory that several parties share. Who needs bytes waits, in order, until others give theirs back."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """`total` bytes. A reservation of more than that is refused with ValueError, because it would wait for ever."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._waiting: deque[tuple[Reservation, asyncio.Future[None]]] = deque()

    def reservation(self, size: int) -> Reservation:
        if not 0 <= size <= self.total:
            raise ValueError(f"{size} bytes are not in a budget of {self.total}")
        return Reservation(self, size)

    def grow(self, total: int) -> None:
        """Have at least so many bytes: who has a reservation may count on what there was."""
        self.total = max(self.total, total)
        self._grant()

    def take_now(self, size: int) -> bool:
        """Take bytes if they are free and nobody waits. Return whether they were."""
        free = not self._waiting and self.used + size <= self.total
        self.used += size if free else 0
        return free

    async def take(self, reservation: Reservation) -> None:
        if self.take_now(reservation.size):
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append((reservation, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give_back(reservation.size)
            else:
                granted.cancel()
                self._grant()  # the next one may need less
            raise

    def give_back(self, size: int) -> None:
        self.used -= size
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            reservation, granted = self._waiting[0]
            if not granted.cancelled():
                if self.used + reservation.size > self.total:
                    return
                self.used += reservation.size
                granted.set_result(None)
            self._waiting.popleft()


class Reservation:
    """`size` bytes of a budget, from `take` to `release`. Releasing twice, or what was never taken, does nothing."""

    def __init__(self, budget: ByteBudget, size: int) -> None:
        self.size = size
        self._budget = budget
        self.taken = False

    async def take(self) -> None:
        """Wait for the bytes. A cancelled wait takes none."""
        await self._budget.take(self)
        self.taken = True

    def take_now(self) -> bool:
        """Take the bytes if that needs no waiting. Return whether it worked."""
        self.taken = self._budget.take_now(self.size)
        return self.taken

    def release(self) -> None:
        if self.taken:
            self.taken = False
            self._budget.give_back(self.size)
