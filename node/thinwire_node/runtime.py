"""The event loop, signals and clocks of the operating system. No other module of this package needs POSIX."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from thinwire_common.program import ending_signals


def run(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run `main(stop)`; SIGINT, SIGTERM and SIGHUP set `stop`: see `ending_signals`."""

    async def with_signals() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal(number: int, frame: FrameType | None) -> None:
            if not loop.is_closed():  # else the program is ending already
                loop.call_soon_threadsafe(stop.set)

        for number in ending_signals():
            signal.signal(number, on_signal)
        await main(stop)

    try:
        import uvloop  # noqa: PLC0415 - not available on Windows
    except ImportError:
        asyncio.run(with_signals())
    else:
        uvloop.run(with_signals())


@asynccontextmanager
async def together(*coroutines: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Run these as tasks during the block, in a fixed order, and cancel them at its end."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def asleep_s() -> float:
    """Grows by the time that the machine spends asleep. Only differences are meaningful.

    Some systems have no clock that runs during sleep. The time of day then serves, whose changes look like a sleep,
    which does no harm."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    since_boot_s = time.time() if boot_time is None else time.clock_gettime(boot_time)
    return since_boot_s - time.monotonic()


@dataclass(frozen=True)
class Clocks:
    """A node's clocks; by default those of this machine. now: seconds on a clock that never jumps. asleep_s: grows by
    the time that the machine spends asleep. time_of_day: seconds since the epoch."""

    now: Callable[[], float] = time.monotonic
    asleep_s: Callable[[], float] = asleep_s
    time_of_day: Callable[[], float] = time.time
