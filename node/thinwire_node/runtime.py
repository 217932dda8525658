"""The seam to the operating system: which event loop, which signals. Nothing else in this package needs POSIX."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
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
