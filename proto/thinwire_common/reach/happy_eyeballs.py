"""Connects to whichever address of a name answers first ("happy eyeballs", RFC 8305).

asyncio's own `happy_eyeballs_delay` is missing in uvloop, and gRPC tries addresses one after another, up to 20 s each.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, zip_longest
from typing import Any, TypeAlias

from thinwire_common.reach.errors import Unreachable
from thinwire_proto import limits

Found: TypeAlias = "list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]]"


async def look_up(host: str, port: int) -> Found:
    """The addresses of a host for TCP, as `socket.getaddrinfo` returns them. Raises OSError.

    The system's look-up blocks, for ten seconds or more where the name server does not answer. So each has a daemon
    thread of its own: an event loop waits at its end for the threads of its own `getaddrinfo`."""
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


ADDRESSES_MAX = 8
"""Addresses of one name that are tried."""
Address = tuple[socket.AddressFamily, Any]
Refusal = Callable[[Address], str]
"""Returns why an address must not be connected to, or nothing."""


async def connect_first(
    host: str, port: int, refusal: Refusal | None = None, listener: str = "a coordinator"
) -> socket.socket:
    """A connected TCP socket, to the first address of the host that answers. listener: the name of what listens there,
    for errors. Raises Unreachable."""
    loop = asyncio.get_running_loop()
    try:
        found = await look_up(host, port)
    except OSError as error:
        reason = error.strerror or error
        raise Unreachable(f"the name {host} cannot be found: {reason}; check it, and this machine's network") from None
    addresses = interleave([(family, address) for family, _, _, _, address in found])[:ADDRESSES_MAX]
    refused = {address: refusal(address) if refusal is not None else "" for address in addresses}
    waiting = [address for address in addresses if not refused[address]]
    errors = [reason for reason in refused.values() if reason]
    running: set[asyncio.Task[socket.socket]] = set()
    try:
        while waiting or running:
            if waiting:
                running.add(loop.create_task(_connect(*waiting.pop(0))))
            pause_s = limits.DIAL_NEXT_S if waiting else None
            done, running = await asyncio.wait(running, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            connected = [task.result() for task in done if task.exception() is None]
            for surplus in connected[1:]:
                surplus.close()
            if connected:
                return connected[0]
            errors += [_in_words(task.exception()) for task in done]
    finally:
        for task in running:
            task.add_done_callback(_close_late)
            task.cancel()
    reasons = "; ".join(dict.fromkeys(errors))
    if refusal is not None:
        raise Unreachable(reasons)  # the address is not one that this machine's owner could check
    raise Unreachable(f"{reasons}; check the address, and that {listener} runs there and its port is open")


def interleave(addresses: Sequence[Address]) -> list[Address]:
    """The addresses in order, but of alternating families, that of the first one first."""
    first = [one for one in addresses if one[0] == addresses[0][0]]
    other = [one for one in addresses if one[0] != addresses[0][0]]
    return [one for one in chain(*zip_longest(first, other)) if one is not None]


async def _connect(family: socket.AddressFamily, address: Any) -> socket.socket:
    own = socket.socket(family, socket.SOCK_STREAM)
    own.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(own, address)
    except OSError as error:
        own.close()
        reason = os.strerror(error.errno) if error.errno else error
        raise OSError(f"{address[0]}: {reason}") from None
    except BaseException:
        own.close()
        raise
    return own


def _close_late(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _in_words(error: BaseException | None) -> str:
    if not isinstance(error, OSError):
        raise AssertionError("only OSError comes from a connect") from error
    return str(error)
