"""500 connections that send nothing, or that begin a TLS handshake and stop. Those that end are opened again."""

from __future__ import annotations

import select
import socket
import ssl
from contextlib import ExitStack, suppress

from abuse.target import Target, trusting

CONNECTIONS = 500
"""To each address."""
AGAIN_S = 0.2


def silent_connections(target: Target) -> None:
    _hold(target, [target.address], b"", "connections")


def begun_handshakes(target: Target) -> None:
    """To the port of gRPC and to the page."""
    _hold(target, [target.address, *target.pages], _begun(), "handshakes begun")


def _begun() -> bytes:
    """The first half of a client's first message."""
    sent = ssl.MemoryBIO()
    client = trusting().wrap_bio(ssl.MemoryBIO(), sent)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = sent.read()
    return hello[: len(hello) // 2]


def _hold(target: Target, addresses: list[str], first: bytes, what: str) -> None:
    with ExitStack() as kept:
        holders = [kept.enter_context(_Held(target, one, first, what)) for one in addresses]
        while not target.stop.is_set():
            for holder in holders:
                holder.fill()
            target.stop.wait(AGAIN_S)
            for holder in holders:
                holder.drop_ended()


class _Held:
    """CONNECTIONS to one address, each of which has sent `first`."""

    def __init__(self, target: Target, address: str, first: bytes, what: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._target, self._first, self._what = target, first, what
        self._open: dict[int, socket.socket] = {}

    def __enter__(self) -> _Held:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open.values():
            one.close()

    def fill(self) -> None:
        while len(self._open) < CONNECTIONS and not self._target.stop.is_set():
            try:
                one = socket.create_connection(self._address, 10)
            except OSError:
                self._target.count("refused connections")
                return
            self._open[one.fileno()] = one
            with suppress(OSError):  # closed already
                one.sendall(self._first)
            self._target.count(self._what)

    def drop_ended(self) -> None:
        poll = select.poll()
        for file in self._open:
            poll.register(file, select.POLLIN)
        for file, _ in poll.poll(0):
            if _has_ended(self._open[file]):
                self._open.pop(file).close()


def _has_ended(one: socket.socket) -> bool:
    """Read what came; the server sends its settings first."""
    with suppress(OSError):
        return not one.recv(1 << 12)
    return True
