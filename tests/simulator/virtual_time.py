"""An event loop whose clock jumps: where nothing is to be done now, it is the time of the next timer at once.

So a day of a swarm takes minutes, and two runs with the same seed do the same things in the same order. What would
run on a thread runs here and now.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


class Deadlock(Exception):
    """Everybody waits, and nothing will ever happen."""


class _NoSelector(selectors.SelectSelector):
    """Nothing ever comes from outside; to wait is to move the clock."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("everybody waits, and no timer is set")
        self._advance(max(0.0, timeout))
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_NoSelector(self._advance))

    def _advance(self, seconds: float) -> None:
        self._now += seconds

    def time(self) -> float:
        return self._now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Result], *args: Any
    ) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever awaits it gets it, as from a thread
            future.set_exception(error)
        return future


class ProcessDied(Exception):
    """What a process was about to do does not happen any more."""


class Killed(BaseException):
    """A node's process is gone in the middle of what it did; nothing may come of it any more."""


def _handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What a killed process has left behind is nobody's to look at; anything else is told."""
    if not isinstance(context.get("exception"), (ProcessDied, Killed)):
        loop.default_exception_handler(context)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end under virtual time; whatever else still runs is cancelled then."""
    gc.set_threshold(300_000, 20, 100)  # a thousand nodes are many objects, which the collector would walk all the time
    torch.set_num_threads(1)  # the tensors are tiny, and threads would only wait for each other
    loop = VirtualTimeLoop()
    loop.set_exception_handler(_handle)
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
