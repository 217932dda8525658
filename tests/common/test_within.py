"""Tests the time limit for a block."""

from __future__ import annotations

import asyncio
import sys

import pytest

from thinwire_common.within import Within


async def test_a_block_that_takes_too_long_ends() -> None:
    with pytest.raises(asyncio.TimeoutError):
        async with Within(0.01):
            await asyncio.Event().wait()
    await asyncio.sleep(0)  # nothing of it is left that would cancel this


async def test_errors_and_cancellations_of_others_pass() -> None:
    with pytest.raises(ValueError, match="mine"):
        async with Within(1000.0):
            raise ValueError("mine")

    async def waits() -> None:
        async with Within(1000.0):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 cannot tell two cancellations from one")
async def test_a_cancellation_that_comes_with_the_end_of_the_time_is_not_lost() -> None:
    limit = Within(1000.0)

    async def waits() -> None:
        async with limit:
            await asyncio.Event().wait()

    task = asyncio.ensure_future(waits())
    await asyncio.sleep(0)
    limit.end()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_inner_of_two_limits_is_told_from_the_outer() -> None:
    async def waits() -> None:
        async with Within(0.01):
            try:
                async with Within(1000.0):
                    await asyncio.Event().wait()
            except asyncio.TimeoutError:
                pytest.fail("the outer limit ended")

    with pytest.raises(asyncio.TimeoutError):
        await waits()
