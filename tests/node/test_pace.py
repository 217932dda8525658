"""Tests of the limit on how often a node takes its coordinator's announcements."""

from __future__ import annotations

import asyncio

from thinwire_node.exchange.coordinator.traffic import AT_ONCE, EARNED, MESSAGES_PER_S, Pace


async def waits(pace: Pace) -> bool:
    """Whether the next message is held back."""
    waiting = asyncio.ensure_future(pace.wait())
    await asyncio.sleep(0)  # it begins
    held = not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return held


async def test_what_comes_with_the_nodes_own_progress_is_never_held_back() -> None:
    pace = Pace()
    for _ in range(10 * AT_ONCE):
        pace.earn()
        for _ in range(EARNED):
            assert not await waits(pace)


async def test_what_comes_without_progress_is_held_back_until_there_is_some() -> None:
    pace = Pace()
    held = 0
    while not await waits(pace):
        held += 1
        assert held < AT_ONCE + 10 * MESSAGES_PER_S
    assert held >= AT_ONCE
    waiting = asyncio.ensure_future(pace.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    pace.earn()
    pace.earn()
    await asyncio.wait_for(waiting, 10)
