"""Sends what a stranger can beside gRPC calls: broken frames, garbage, TLS that ends early, HTTP requests."""

from __future__ import annotations

import asyncio
import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from fuzz.mutations import damage_bytes
from support import http2_client as frames
from support.http2_client import Header, call_headers, prefixed

FRAME_BYTES_MAX = 16384
STRANGELY = 0.3
"""The share of header blocks with a strange path, and of those with other damaged headers."""
SILENT_S = 0.05
"""The longest wait for an answer."""
READ_BYTES = 1 << 16
CLIENT_HELLO = bytes.fromhex(
    "1603010075010000710303000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f0000021301"
    "01000046002b0003020304000d0004000204030033002600240"
    "01d0020000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f000a00040002001d"
)
PATHS = (
    *("/", "/api/status", "/api/history", "/api/live", "/history.csv", "/metrics", "/readyz", "/livez"),
    *("/static/page.js", "/static/../page.py", "/static/%2e%2e/page.py", "/static//etc/passwd", "/organizer"),
    *("/organizer/login", "/organizer/login", "/organizer/state", "/organizer/ban", "/metrics/", "/organizer/login/"),
    *("/api/status?nodes=-1", "/api/status?nodes=9999999999", "/api/status?sort=", "/api/status?sort=-tokens&nodes=5"),
    *("/api/history?points=0", "/api/history?set=%00", "/api/history?points=1e9", "/%", "/%ff", "//", "*"),
)
METHODS = ("GET", "GET", "GET", "HEAD", "POST", "PUT", "OPTIONS", "TRACE", "CONNECT", "get", "G" * 300, "")
HEADERS = (
    *("Content-Length: 5", "Content-Length: -1", "Content-Length: 99999999999999999999", "Transfer-Encoding: chunked"),
    *("Connection: keep-alive", "Connection: Upgrade\r\nUpgrade: h2c", "Expect: 100-continue", "Host: a\r\nHost: b"),
    *("If-None-Match: *", "Accept-Encoding: gzip", "Range: bytes=0-", "Cookie: a=b", "Authorization: Basic !!!"),
    *("X: " + "a" * 20000, "X" * 300 + ": y", " folded", ": empty", "\x00: \x00", "Accept: text/event-stream"),
    *("Origin: https://evil.example", "Origin: http://[", "Host: [", "Host: a]:-1", "Sec-Fetch-Site: cross-site"),
    *("Cookie: thinwire=" + "0" * 64, "Content-Type: application/json"),
)


STRANGE = (
    *(b"/thinwire.v1.Swarm/Nothing", b"/thinwire.v1.Swarm/", b"/grpc.health.v1.Health/Check", b"/", b"", b"*"),
    *(b"/grpc.health.v1.Health/Watch", b"/grpc.channelz.v1.Channelz/GetServers", b"thinwire.v1.Swarm/Status"),
    *(b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", b"/thinwire.v1.Swarm/Status/../Join"),
    *(b"/thinwire.v1.Swarm/\xff", b"/" + b"a" * 3000),
)
"""Paths of calls."""
VALUES = (
    *(b"", b"0", b"-1", b"99999999S", b"1n", b"1H", b"\xff", b"a" * 200, b"\0", b"gzip", b"identity,deflate", b"%00"),
)
NAMES = (b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"content-type", b"te", b"user-agent", b"x-bin")


@dataclass(frozen=True)
class Stray:
    label: str
    data: bytes
    in_tls: bool = True


def of_grpc(rng: Random) -> Stray:
    """Something for the port of gRPC."""
    kind = rng.randrange(8)
    if kind == 0:
        return Stray("garbage", rng.randbytes(rng.choice((1, 9, 24, 100, 5000))), in_tls=rng.random() < 0.5)
    if kind == 1:
        hello = damage_bytes(rng, CLIENT_HELLO, [CLIENT_HELLO])
        return Stray("client hello", rng.choice((hello, CLIENT_HELLO, CLIENT_HELLO * 20, hello[:40])), in_tls=False)
    if kind == 2:
        return Stray("preface", rng.choice((frames.PREFACE[:-3], frames.PREFACE * 2, b"GET / HTTP/1.1\r\n\r\n")))
    sequence = b"".join(_frame(rng) for _ in range(rng.choice((1, 1, 2, 5, 200))))
    start = frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0) if rng.random() < 0.95 else b""
    return Stray("frames", start + (damage_bytes(rng, sequence, [sequence]) if kind == 3 else sequence))


def _frame(rng: Random) -> bytes:  # noqa: PLR0911 - one for each kind of frame
    """A frame that may be right, at a wrong time, or wrong in itself."""
    stream = rng.choice((0, 1, 1, 1, 2, 3, 5, frames.WINDOW_MAX, 1 << 31))
    flags = rng.choice((0, 1, 4, 5, 8, 0x20, 0x2D, 255))
    kind = rng.randrange(12)
    path = rng.choice((b"Status", b"Join", b"Contribute", b"Updates"))
    path = rng.choice(STRANGE) if rng.random() < STRANGELY else b"/thinwire.v1.Swarm/" + path
    headers = call_headers(path)
    block = frames.block(_damaged_headers(rng, headers) if rng.random() < STRANGELY else headers)
    if kind <= 2:
        return frames.frame(frames.HEADERS, 4 | rng.choice((0, 1)), stream, rng.choice((block, _block(rng, block))))
    if kind == 3:
        return frames.frame(frames.HEADERS, 0, stream, block) + _continuations(rng, stream)
    if kind == 4:
        return frames.frame(frames.DATA, flags, stream, rng.choice((prefixed(b""), b"", rng.randbytes(300))))
    if kind == 5:
        pairs = [
            (rng.randrange(10), rng.choice((0, 1, 65535, 1 << 30, (1 << 32) - 1))) for _ in range(rng.randrange(9))
        ]
        right = frames.frame(frames.SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))
        return rng.choice((right, frames.frame(frames.SETTINGS, flags, stream, b"\0" * 7)))
    if kind == 6:
        more = rng.choice((0, 1, frames.WINDOW_MAX, (1 << 32) - 1))
        return frames.frame(frames.WINDOW_UPDATE, 0, stream, struct.pack(">I", more))
    if kind == 7:
        return frames.frame(frames.RST_STREAM, 0, stream, rng.choice((struct.pack(">I", rng.randrange(20)), b"")))
    if kind == 8:
        return frames.frame(frames.PING, flags, stream, rng.choice((b"12345678", b"", b"9" * 9))) * rng.choice((1, 50))
    if kind == 9:
        return frames.frame(frames.GOAWAY, flags, stream, struct.pack(">II", stream, rng.randrange(20)))
    if kind == 10:
        size = rng.choice((FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, (1 << 24) - 1))
        return struct.pack(">I", size)[1:] + struct.pack(">BBI", rng.randrange(12), flags, stream) + b"\0" * 100
    return frames.frame(rng.randrange(256), flags, stream, rng.randbytes(rng.choice((0, 4, 5, 8, 40))))


def _block(rng: Random, block: bytes) -> bytes:
    """A header block that damages the table, grows it, or is cut off."""
    kind = rng.randrange(5)
    if kind == 0:
        return damage_bytes(rng, block, [block])
    if kind == 1:
        return frames.integer(rng.choice((0, 4096, 1 << 20, 1 << 40)), 5, 0x20) + block
    if kind == 2:
        return block + frames.integer(rng.choice((62, 63, 1000, 1 << 31)), 7, 0x80) * rng.choice((1, 2000))
    if kind == 3:
        entry = b"\x40" + b"\x01a" + frames.integer(3000, 7) + b"b" * 3000
        return entry + b"\xbe" * rng.choice((1, 4000)) + block  # one entry of the table, shown again and again
    return block + b"\0" + frames.integer(1 << 30, 7) + b"x"


def _damaged_headers(rng: Random, headers: list[Header]) -> list[Header]:
    found, kind = list(headers), rng.randrange(6)
    place = rng.randrange(len(found))
    name, value = found[place]
    if kind == 0:
        del found[place]
    elif kind == 1:
        found.insert(rng.randrange(len(found) + 1), found[place])
    elif kind == 2:
        found[place] = (name, rng.choice((*VALUES, damage_bytes(rng, value, [value]))))
    elif kind == 3:
        found[place] = (rng.choice((name.upper(), b"", b":odd", b"\xff", name + b"-bin")), value)
    elif kind == 4:
        found += [(rng.choice(NAMES), rng.choice(VALUES)) for _ in range(rng.choice((1, 2, 60)))]
    else:
        rng.shuffle(found)
    return found


def _continuations(rng: Random, stream: int) -> bytes:
    count = rng.choice((0, 1, 3, 300))
    piece = frames.block([(b"x", b"y" * rng.choice((0, 10, 1000)))])
    last = frames.frame(frames.CONTINUATION, frames.END_HEADERS, stream, b"") if rng.random() < 0.5 else b""
    return frames.frame(frames.CONTINUATION, 0, stream, piece) * count + last


def of_http(rng: Random) -> Stray:
    """Something for the port of the page."""
    if rng.random() < 0.05:
        return Stray("http garbage", rng.randbytes(rng.choice((1, 20, 40000))), in_tls=rng.random() < 0.5)
    requests = []
    for _ in range(rng.choice((1, 1, 1, 3))):
        lines = [
            f"{rng.choice(METHODS)} {rng.choice(PATHS)} {rng.choice(('HTTP/1.1', 'HTTP/1.1', 'HTTP/1.0', 'HTTP/9'))}"
        ]
        lines += ["Host: localhost"] if rng.random() < 0.9 else []
        lines += rng.sample(HEADERS, rng.choice((0, 1, 2, 4)))
        lines += ["X-Many: y"] * rng.choice((0, 0, 0, 500))
        body = rng.choice(("", "hello", "5\r\nhello\r\n0\r\n\r\n", "ffffffffff\r\n", "{}"))
        requests.append("\r\n".join(lines) + "\r\n\r\n" + body)
    data = "".join(requests).encode("latin-1")
    return Stray("http", damage_bytes(rng, data, [data]) if rng.random() < 0.3 else data)


async def send(host: str, port: int, context: ssl.SSLContext | None, stray: Stray) -> str:
    """Send, and return what kind of answer came."""
    name = "thinwire-coordinator" if context is not None else None
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    except (OSError, ssl.SSLError):
        return "no connection"
    try:
        writer.write(stray.data)
        data = await asyncio.wait_for(reader.read(READ_BYTES), SILENT_S)
    except asyncio.TimeoutError:
        return "silence"
    except (OSError, ssl.SSLError):
        return "reset"
    finally:
        writer.transport.abort()
        with suppress(OSError, ssl.SSLError):
            await writer.wait_closed()
    return _kind(data)


def _kind(data: bytes) -> str:
    """The kind of an answer. A status of HTTP that says that the server failed is a find."""
    if not data:
        return "closed"
    if data.startswith(b"HTTP/1."):
        status = data[9:12].decode("latin-1")
        return f"HTTP {status}" if status < "500" or status == "503" else f"Exception behind HTTP {status}"
    if b"Traceback" in data:
        return f"Traceback: {data!r}"
    return "TLS" if data[:1] in (b"\x15", b"\x16") else "frames"
