"""The event loop, signals and clocks of the operating system. No other module of this package needs POSIX."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
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


@dataclass(frozen=True)
class Clocks:
    """A node's clocks.

    now: seconds on a monotonic clock. asleep_s: grows by the time that the machine spends asleep. time_of_day: seconds
    since the epoch."""

    now: Callable[[], float]
    asleep_s: Callable[[], float]
    time_of_day: Callable[[], float] = time.time


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> float:
        """Seconds on a clock that never jumps."""
        return time.monotonic()

    def asleep_s(self) -> float:
        """Grows by the time that the machine spends asleep. Only differences are meaningful.

        Some systems have no clock that runs during sleep. This method then uses the time of day. A change of the time
        of day looks like a sleep, which does no harm."""
        boot_time = getattr(time, "CLOCK_BOOTTIME", None)
        since_boot_s = time.time() if boot_time is None else time.clock_gettime(boot_time)
        return since_boot_s - time.monotonic()
