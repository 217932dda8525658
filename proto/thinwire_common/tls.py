"""TLS for the HTTP servers: a certificate that can be replaced while the server runs, and a bound on handshakes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from thinwire_proto import limits


class ServerTls:
    """A TLS context whose certificate can be replaced; open connections go on. chain, key: PEM."""

    def __init__(self, chain: bytes, key: bytes) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self.replace(chain, key)

    def replace(self, chain: bytes, key: bytes) -> None:
        """Use another certificate for new connections."""
        handle, name = tempfile.mkstemp()  # OpenSSL reads certificates from files only; this one has mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(chain + b"\n" + key)
            self.context.load_cert_chain(name)
        finally:
            Path(name).unlink()


log = logging.getLogger("thinwire.http")

HANDSHAKES_MAX = 64
"""Under way at the same time. An honest one takes two round trips."""


class MakeProtocol(Protocol):
    """Makes the protocol of a connection, which calls `established` first of all when its connection is made."""

    def __call__(self, *, established: Callable[[], None]) -> asyncio.Protocol: ...


class TlsListener:
    """Serves a protocol that `make` makes on each connection whose handshake succeeds in time, until `close`.

    The problem: `loop.create_server` begins a handshake with whoever connects, so peers that stop in the middle of
    theirs take memory and open files until their time is up. A protocol hears of a connection only after the handshake,
    which is too late to bound it. So this accepts the connections itself. Beyond the bound, a new handshake takes the
    place of the oldest of the network with the most. A fault of this program is logged, and the next one is accepted.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: MakeProtocol,
        context: ssl.SSLContext,
        patience_s: float,
        network_of: Callable[[str], str] = str,
    ) -> None:
        """network_of: groups the IP addresses of peers."""
        listening.setblocking(False)
        self._listening = listening
        self._make = make
        self._context = context
        self._patience_s = patience_s
        self._network_of = network_of
        self._handshakes: dict[socket.socket, str] = {}  # of which network; the oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self.failures = 0
        """Connections that were lost to a fault of this program."""
        self._failure_told_s: float | None = None
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
                connection, address = await loop.sock_accept(self._listening)
            except ConnectionError:  # the peer has gone already
                continue
            except OSError:  # this process has no free file
                await asyncio.sleep(limits.ACCEPT_AGAIN_S)
                continue
            except Exception as error:  # noqa: BLE001 - the boundary of this task
                self._tell_failure(error)
                await asyncio.sleep(limits.ACCEPT_AGAIN_S)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                self._give_up_oldest()
            self._handshakes[connection] = self._network_of(address[0])
            task = loop.create_task(self._shake_hands(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _shake_hands(self, connection: socket.socket) -> None:
        def established() -> None:
            self._handshakes.pop(connection, None)

        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                partial(self._make, established=established),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._patience_s,
            )
        except OSError:  # it failed or took too long, which is the peer's affair
            pass
        except Exception as error:  # noqa: BLE001 - the boundary of this task
            self._tell_failure(error)
            connection.close()
        finally:
            established()

    def _give_up_oldest(self) -> None:
        """End the oldest connection of the network with the most, which ends its handshake as if the peer had gone."""
        crowded = Counter(self._handshakes.values()).most_common(1)[0][0]
        connection = next(one for one, network in self._handshakes.items() if network == crowded)
        del self._handshakes[connection]
        with suppress(OSError):  # it has ended already
            connection.shutdown(socket.SHUT_RDWR)

    def _tell_failure(self, error: Exception) -> None:
        """Count a fault of this program. One in FAILURE_TOLD_AGAIN_S is logged."""
        self.failures += 1
        now_s = asyncio.get_running_loop().time()
        if self._failure_told_s is None or now_s - self._failure_told_s >= limits.FAILURE_TOLD_AGAIN_S:
            self._failure_told_s = now_s
            text = "a connection could not be served (%d so far); the next ones will be"
            log.error(text, self.failures, exc_info=error)
