"""Looks up the addresses of a name.

The system's look-up blocks, and takes ten seconds or more where the name server does not answer. So each has a daemon
thread of its own. An event loop's own `getaddrinfo` runs on threads that the loop waits for at its end, and then a
program that is told to stop does not end until the look-up does.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any, TypeAlias

Found: TypeAlias = "list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]]"


async def look_up(host: str, port: int) -> Found:
    """The addresses of a host for TCP, as `socket.getaddrinfo` returns them. Raises OSError."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Found] = loop.create_future()

    def settle(found: Found, error: Exception | None) -> None:
        if not done.done():
            done.set_result(found) if error is None else done.set_exception(error)

    def work() -> None:
        found: Found = []
        error: Exception | None = None
        try:
            found += socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as raised:
            error = OSError(str(raised)) if isinstance(raised, UnicodeError) else raised
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(settle, found, error)

    threading.Thread(target=work, name="name look-up", daemon=True).start()
    return await done
