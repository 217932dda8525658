"""A test's log has no line of the calls of the test before."""

from __future__ import annotations

import asyncio
import logging

import pytest


class PollerCompletionQueue:
    """As asyncio names it, gRPC's poller, which finds the loop of a call closed."""

    def _handle_events(self, closed: asyncio.AbstractEventLoop) -> None:
        closed.call_soon_threadsafe(lambda: None)


@pytest.fixture
def closed() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.close()
    return loop


async def test_a_late_event_of_a_call_leaves_no_line_in_the_log(
    closed: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.get_running_loop().call_soon(PollerCompletionQueue()._handle_events, closed)
    await asyncio.sleep(0)
    assert not caplog.records


async def test_other_errors_of_callbacks_are_logged(
    closed: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.get_running_loop().call_soon(closed.call_soon_threadsafe, print)
    await asyncio.sleep(0)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
