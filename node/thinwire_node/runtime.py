"""The seam to the operating system: which event loop, which signals, which clock. Nothing else in this package needs
POSIX."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import FrameType
from typing import Any


def run(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run `main(stop)`; SIGINT and SIGTERM set `stop`."""

    async def with_signals() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def told(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(stop.set)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, told)
        await main(stop)

    try:
        import uvloop  # noqa: PLC0415 - there is none for Windows
    except ImportError:
        asyncio.run(with_signals())
    else:
        uvloop.run(with_signals())


@dataclass(frozen=True)
class Clocks:
    """now: seconds on a monotonic clock. asleep_s: grows by what the machine sleeps."""

    now: Callable[[], float]
    asleep_s: Callable[[], float]


class SystemClock:
    """Seconds on a clock that never jumps, and how long the machine has slept."""

    def now(self) -> float:
        return time.monotonic()

    def asleep_s(self) -> float:
        """Grows by what the machine sleeps. Only differences mean anything; where the system has no clock that runs
        on in sleep, the time of day stands in for it, and setting it looks like a sleep, which does no harm."""
        boot_time = getattr(time, "CLOCK_BOOTTIME", None)
        there = time.time() if boot_time is None else time.clock_gettime(boot_time)
        return there - time.monotonic()
