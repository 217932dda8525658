"""One HTTP/2 connection with many gRPC calls in flight."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote

from fuzz.wire import frames
from thinwire_proto.wire.metadata import REASON

STREAMS_MAX = 20_000
"""Calls of one connection, before a new one is opened."""
DATA_BYTES_MAX = 1 << 22
CREDIT_EVERY = 1 << 24
"""Bytes received after which the server gets room for as many."""


@dataclass(frozen=True)
class Answer:
    """status: gRPC's number; None if the server reset the stream or closed the connection. text: its message.

    reason: the word for a refusal; empty without one."""

    status: int | None
    text: str = ""
    data: bytes = b""
    """What was answered, as gRPC's length-prefixed messages; its beginning."""
    reason: str = ""


@dataclass
class _Call:
    answer: asyncio.Future[Answer]
    data: bytearray
    heard: Callable[[bytes], None] | None = None


class Connection(asyncio.Protocol):
    """Sends calls as ready frames and returns their answers."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader = frames.Reader()
        self._calls: dict[int, _Call] = {}
        self._next = 1
        self._received = 0
        self._room = frames.WINDOW
        self._room_here = 65535
        self._waiting: deque[tuple[int, bytes]] = deque()
        self.closed = asyncio.get_running_loop().create_future()
        self._unsent: list[bytes] = []

    @classmethod
    async def open(
        cls, host: str, port: int, context: ssl.SSLContext | None = None, own_host: str | None = None
    ) -> Connection:
        """own_host: the address to connect from; there are many on loopback."""
        loop = asyncio.get_running_loop()
        name = "thinwire-coordinator" if context is not None else None
        own = (own_host, 0) if own_host is not None else None
        _, connection = await loop.create_connection(cls, host, port, ssl=context, server_hostname=name, local_addr=own)
        connection.write(frames.greeting())
        return connection

    @property
    def usable(self) -> bool:
        return not self.closed.done() and self._next < 2 * STREAMS_MAX

    def write(self, data: bytes) -> None:
        """Send at the end of this turn of the loop, together with all else that is written in it."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(data)

    def _flush(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def call(
        self, headers: bytes, body: list[bytes], *, ends: bool = True, heard: Callable[[bytes], None] | None = None
    ) -> tuple[int, asyncio.Future[Answer]]:
        """Start a call. Returns the stream and the answer to come.

        headers: a block. body: payloads of DATA frames. heard: gets what is answered, as it comes."""
        stream, self._next = self._next, self._next + 2
        call = _Call(asyncio.get_running_loop().create_future(), bytearray(), heard)
        self._calls[stream] = call
        only = not body and ends
        self.write(
            frames.frame(frames.HEADERS, frames.END_HEADERS | (frames.END_STREAM if only else 0), stream, headers)
        )
        for number, payload in enumerate(body):
            last = ends and number == len(body) - 1
            data = frames.frame(frames.DATA, frames.END_STREAM if last else 0, stream, payload)
            self._waiting.append((len(payload), data))
        self._send_body()
        return stream, call.answer

    def _send_body(self) -> None:
        """Send DATA for which the server has room. Headers do not wait: a stream that begins after one with a higher
        number is none (RFC 9113, 5.1.1), and is never answered."""
        while self._waiting and self._waiting[0][0] <= self._room_here:
            size, data = self._waiting.popleft()
            self._room_here -= size
            self.write(data)

    def more_room(self, stream: int, size: int) -> None:
        """Let the server send more on a stream."""
        self.write(frames.window_update(stream, size))

    def cancel(self, stream: int) -> None:
        """End a call from this side. It keeps what was answered so far."""
        call = self._calls.pop(stream, None)
        if call is not None and not call.answer.done():
            self.write(frames.reset(stream))
            call.answer.set_result(Answer(None, "cancelled", bytes(call.data)))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_result(Answer(None, "connection closed", bytes(call.data)))
        self._calls.clear()
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > CREDIT_EVERY:
            self.write(frames.window_update(0, self._received))
            self._received = 0
        for kind, flags, stream, payload in self._reader.feed(data):
            self._got(kind, flags, stream, payload)

    def _got(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == frames.SETTINGS and not flags & frames.ACK:
            self.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        elif kind == frames.PING and not flags & frames.ACK:
            self.write(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.WINDOW_UPDATE and stream == 0:
            self._room_here += struct.unpack(">I", payload)[0]
            self._send_body()
        elif kind == frames.GOAWAY:
            self._next = 2 * STREAMS_MAX
        elif (call := self._calls.get(stream)) is not None:
            self._got_of(call, kind, flags, stream, payload)

    def _got_of(self, call: _Call, kind: int, flags: int, stream: int, payload: bytes) -> None:
        answer: Answer | None = None
        if kind == frames.DATA:
            if call.heard is not None:
                call.heard(payload)
            elif len(call.data) < DATA_BYTES_MAX:
                call.data += payload
        elif kind == frames.HEADERS:
            found = frames.read_block(payload)
            if "grpc-status" in found:
                text, reason = unquote(found.get("grpc-message", "")), found.get(REASON, "")
                answer = Answer(int(found["grpc-status"]), text, bytes(call.data), reason)
            elif found.get(":status", "200") != "200":
                answer = Answer(None, f"HTTP {found[':status']}", bytes(call.data))
        elif kind == frames.RST_STREAM:
            answer = Answer(None, f"reset {int.from_bytes(payload, 'big')}", bytes(call.data))
        if answer is None and flags & frames.END_STREAM and kind in (frames.DATA, frames.HEADERS):
            answer = Answer(None, "ended without a status", bytes(call.data))
        if answer is not None:
            del self._calls[stream]
            if not call.answer.done():
                call.answer.set_result(answer)
