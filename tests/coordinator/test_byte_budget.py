"""Tests the shared budget of bytes."""

from __future__ import annotations

import asyncio
import random

from thinwire_coordinator.hall.byte_budget import ByteBudget


async def test_who_needs_bytes_waits_in_order() -> None:
    budget, order = ByteBudget(10), list[int]()
    first = budget.reservation(8)
    await first.take()

    async def wait(size: int) -> None:
        reservation = budget.reservation(size)
        await reservation.take()
        order.append(size)
        reservation.release()

    waiting = [asyncio.ensure_future(wait(size)) for size in (9, 1, 2)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert order == []  # the small ones do not overtake, or the large one might wait for ever
    first.release()
    await asyncio.gather(*waiting)
    assert order == [9, 1, 2]
    assert budget.used == 0


async def test_the_budget_holds_whoever_gives_up() -> None:
    """A thousand reservations, of which many are cancelled while they wait or as they are granted."""
    randomness, budget, most = random.Random(1), ByteBudget(100), 0

    async def use() -> None:
        nonlocal most
        reservation = budget.reservation(randomness.randint(0, 100))
        try:
            await reservation.take()
            most = max(most, budget.used)
            for _ in range(randomness.randint(0, 3)):
                await asyncio.sleep(0)
        finally:
            reservation.release()
            reservation.release()

    tasks = [asyncio.ensure_future(use()) for _ in range(1000)]
    while not all(task.done() for task in tasks):
        randomness.choice(tasks).cancel()
        await asyncio.sleep(0)
    assert 0 < most <= 100
    assert budget.used == 0
