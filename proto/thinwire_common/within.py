"""A time limit for a block of code, without a task of its own.

`asyncio.wait_for` runs what it waits for in another task (before Python 3.12). If the caller is cancelled just as that
task ends, the cancellation is lost: a loop that dials again and again then never stopped, and neither did its node. Or
nobody looks at the task's failure, and asyncio logs a traceback: strangers could fill the log with these.
`asyncio.timeout` came with Python 3.11.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class Within:
    """`async with Within(seconds):` raises asyncio.TimeoutError after so long. `end` ends the block at once in the same
    way.

    seconds: None for no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        self._cancellations = 0  # by others, before the block began

    def end(self) -> None:
        """End the block, if it runs and has not ended already."""
        if self._task is not None and not self._ended:
            self._ended = True
            self._task.cancel()

    async def __aenter__(self) -> Within:
        self._task = asyncio.current_task()
        self._cancellations = _cancellations(self._task)
        if self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self.end)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if self._ended and kind is asyncio.CancelledError:
            if (uncancel := getattr(task, "uncancel", None)) is not None:
                uncancel()
            if _cancellations(task) > self._cancellations:
                return  # somebody else has cancelled the task meanwhile
            raise asyncio.TimeoutError from None


def _cancellations(task: asyncio.Task[object] | None) -> int:
    """How often a task is being cancelled. Before Python 3.11 nobody can tell."""
    count: int = getattr(task, "cancelling", int)()
    return count


async def set_or_after(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, but at most `seconds`.

    `asyncio.wait_for` does not fit: before Python 3.12 it swallows a cancellation that arrives together with the
    event."""
    timer = asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
