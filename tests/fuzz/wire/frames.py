"""HTTP/2 frames (RFC 9113) and header blocks (RFC 7541) as bytes.

A client library would refuse to send what a fuzzer has to send, and takes longer for a call than the server does. The
reader asks the server for an empty header table, so that each block can be read by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 1, 1, 4, 8, 0x20
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 4, 5
WINDOW = (1 << 31) - 1
FRAME_BYTES_MAX = 16384
CANCEL = 8

STATIC = """:authority=|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|:scheme=https|:status=200|\
:status=204|:status=206|:status=304|:status=400|:status=404|:status=500|accept-charset=|accept-encoding=gzip, deflate|\
accept-language=|accept-ranges=|accept=|access-control-allow-origin=|age=|allow=|authorization=|cache-control=|\
content-disposition=|content-encoding=|content-language=|content-length=|content-location=|content-range=|\
content-type=|cookie=|date=|etag=|expect=|expires=|from=|host=|if-match=|if-modified-since=|if-none-match=|if-range=|\
if-unmodified-since=|last-modified=|link=|location=|max-forwards=|proxy-authenticate=|proxy-authorization=|range=|\
referer=|refresh=|retry-after=|server=|set-cookie=|strict-transport-security=|transfer-encoding=|user-agent=|vary=|\
via=|www-authenticate="""
STATIC_TABLE = [tuple(entry.split("=", 1)) for entry in STATIC.split("|")]

Header = tuple[bytes, bytes]


class CannotRead(Exception):
    """The server sent what it must not send."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind & 255, flags & 255, stream) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def greeting() -> bytes:
    """Return the first frames of a client: it wants no header table. Of each stream, it reads slowly what is long."""
    wanted = settings((HEADER_TABLE_SIZE, 0))
    return PREFACE + wanted + window_update(0, WINDOW - 65535)


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", more))


def reset(stream: int, error: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", error))


def block(headers: Iterable[Header]) -> bytes:
    """A header block of literals, which leave the server's table alone."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)


def _text(data: bytes) -> bytes:
    return integer(len(data), 7) + data


def integer(number: int, bits: int, first: int = 0) -> bytes:
    limit = (1 << bits) - 1
    if number < limit:
        return bytes([first | number])
    found, number = bytearray([first | limit]), number - limit
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


class Reader:
    """Cuts received bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield (kind, flags, stream, payload) of each complete frame."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= 9:
            size = int.from_bytes(self._buffer[start : start + 3], "big")
            if len(self._buffer) - start < 9 + size:
                break
            kind, flags, stream = struct.unpack_from(">BBI", self._buffer, start + 3)
            payload = bytes(self._buffer[start + 9 : start + 9 + size])
            start += 9 + size
            yield kind, flags, stream & WINDOW, payload
        del self._buffer[:start]


def read_block(data: bytes) -> dict[str, str]:
    """The headers of a block without Huffman coding and without a dynamic table. Raises CannotRead."""
    found: dict[str, str] = {}
    at = 0
    try:
        while at < len(data):
            first = data[at]
            if first & 0x80:
                index, at = _read_integer(data, at, 7)
                name, value = STATIC_TABLE[index - 1]
                found[name] = value
            elif first & 0xE0 == 0x20:
                _, at = _read_integer(data, at, 5)
            else:
                index, at = _read_integer(data, at, 6 if first & 0x40 else 4)
                if index:
                    name = STATIC_TABLE[index - 1][0]
                else:
                    name, at = _read_text(data, at)
                found[name], at = _read_text(data, at)
    except IndexError:
        raise CannotRead(f"a header block: {data.hex()}") from None
    return found


def _read_integer(data: bytes, at: int, bits: int) -> tuple[int, int]:
    limit = (1 << bits) - 1
    number, at, shift = data[at] & limit, at + 1, 0
    if number < limit:
        return number, at
    while True:
        byte, at = data[at], at + 1
        number += (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return number, at


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    coded = data[at] & 0x80
    size, at = _read_integer(data, at, 7)
    if coded:
        raise CannotRead(f"a header in Huffman coding: {data.hex()}")
    return data[at : at + size].decode("latin-1"), at + size
