"""Accepts TLS connections, with a bound on the handshakes that are under way.

The problem: `loop.create_server` begins a handshake with whoever connects, so peers that stop in the middle of theirs
take memory and open files until their time is up. A protocol hears of a connection only after the handshake, which is
too late to bound it. So this accepts the connections itself. Beyond the bound, a new handshake takes the place of the
oldest.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from thinwire_proto import limits

HANDSHAKES_MAX = 64
"""Under way at the same time. An honest one takes two round trips."""


class TlsListener:
    """Serves a protocol that `make` makes on each connection whose handshake succeeds in time, until `close`."""

    def __init__(
        self, listening: socket.socket, make: Callable[[], asyncio.Protocol], context: ssl.SSLContext, patience_s: float
    ) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._make = make
        self._context = context
        self._patience_s = patience_s
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}  # the oldest first
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    @property
    def handshakes(self) -> int:
        """The number of handshakes under way."""
        return len(self._handshakes)

    def close(self) -> None:
        """Accept nothing any more, and end the handshakes. Connections go on."""
        self._accepting.cancel()
        while self._handshakes:
            self._give_up_oldest()

    async def wait_closed(self) -> None:
        """Wait until nothing is accepted any more."""
        await asyncio.wait({self._accepting})

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except ConnectionError:  # the peer has gone already
                continue
            except OSError:  # this process has no free file
                await asyncio.sleep(limits.ACCEPT_AGAIN_S)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                self._give_up_oldest()
            task = loop.create_task(self._shake_hands(connection))
            self._handshakes[task] = connection
            task.add_done_callback(lambda task: self._handshakes.pop(task, None))

    async def _shake_hands(self, connection: socket.socket) -> None:
        with suppress(OSError):  # it failed or took too long, which is the peer's affair
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, connection, ssl=self._context, ssl_handshake_timeout=self._patience_s
            )

    def _give_up_oldest(self) -> None:
        """End the connection, which ends its handshake as if the peer had gone."""
        connection = self._handshakes.pop(next(iter(self._handshakes)))
        with suppress(OSError):  # it has ended already
            connection.shutdown(socket.SHUT_RDWR)
