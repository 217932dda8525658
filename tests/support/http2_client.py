"""A client of bare HTTP/2 frames (RFC 9113), for what no well-behaved client does: it sends what it is told, reads only
when told, and never gives credit for what it has read. Headers are not compressed (RFC 7541, literals)."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable
from types import TracebackType

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
CANCEL = 8
INITIAL_WINDOW_SIZE = 4
WINDOW_MAX = (1 << 31) - 1
WINDOW_DEFAULT = (1 << 16) - 1
HEAD_BYTES = 9
CONNECT_S = 10.0

Header = tuple[bytes, bytes]


class Http2Client:
    """One connection. tls: how to dress it; None for plain text. window: bytes of a stream that the server may send."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None, window: int = WINDOW_DEFAULT) -> None:
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host, int(port)), CONNECT_S)
        self.socket = tls.wrap_socket(plain, server_hostname="thinwire-coordinator") if tls is not None else plain
        self._next_stream = 1
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        first = PREFACE + frame(SETTINGS, 0, 0, settings)
        if window > WINDOW_DEFAULT:
            first += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", window - WINDOW_DEFAULT))
        self.socket.sendall(first + frame(SETTINGS, ACK, 0))

    def open(self, call: str, *headers: Header) -> int:
        """Open a stream for a call of the swarm (its short name, or /SERVICE/CALL), and return its number."""
        path = call if call.startswith("/") else f"/thinwire.v1.Swarm/{call}"
        return self.open_path(path.encode(), *headers)

    def open_path(self, path: bytes, *headers: Header) -> int:
        """Open a stream for a call of any path."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self.socket.sendall(frame(HEADERS, END_HEADERS, stream, block([*call_headers(path), *headers])))
        return stream

    def send(self, stream: int, message: bytes, *, last: bool = True) -> None:
        """Send a whole gRPC message of up to 16 kB."""
        self.send_raw(stream, prefixed(message), last=last)

    def send_raw(self, stream: int, data: bytes, *, last: bool = False) -> None:
        self.socket.sendall(frame(DATA, END_STREAM if last else 0, stream, data))

    def drop(self, stream: int) -> None:
        self.socket.sendall(frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)))

    def closed_within(self, patience_s: float) -> bool:
        return closed_within(self.socket, patience_s)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Http2Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def closed_within(connection: socket.socket, patience_s: float) -> bool:
    """Read what comes. Return whether the server closes the connection before nothing came for `patience_s`."""
    connection.settimeout(patience_s)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def call_headers(path: bytes) -> list[Header]:
    """The headers of a gRPC call."""
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"thinwire"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]


def prefixed(message: bytes) -> bytes:
    """A message as gRPC sends it."""
    return struct.pack(">BI", 0, len(message)) + message


def frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data


def block(headers: Iterable[Header]) -> bytes:
    """A header block of literals, which leave the server's table alone."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)


def _text(data: bytes) -> bytes:
    return integer(len(data), 7) + data


def integer(number: int, bits: int, first: int = 0) -> bytes:
    """An integer of a prefix of some bits (RFC 7541, 5.1)."""
    limit = (1 << bits) - 1
    if number < limit:
        return bytes([first | number])
    found, number = bytearray([first | limit]), number - limit
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
