"""An event loop in virtual time. When no task can run, its clock jumps to the next timer.

A day of a swarm thus takes minutes, and two runs with the same seed do the same things in the same order. Jobs for
other threads run at once on this one.
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
    """Every task waits and no timer is set."""


class _NoSelector(selectors.SelectSelector):
    """A selector without files. Waiting moves the clock."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits and no timer is set")
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
        except Exception as error:  # noqa: BLE001 - the awaiting task gets the error, as from a thread
            future.set_exception(error)
        return future


class ProcessDied(Exception):
    """The coordinator's process was killed before its next action."""


class Killed(BaseException):
    """The node's process was killed. Its code must have no further effect."""


def _handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an unhandled error, unless it comes from a killed process."""
    if not isinstance(context.get("exception"), (ProcessDied, Killed)):
        loop.default_exception_handler(context)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end in virtual time, then cancel all remaining tasks."""
    gc.set_threshold(300_000, 20, 100)  # a thousand nodes have many objects, which slow the collector down
    torch.set_num_threads(1)  # the tensors are too small for several threads
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
