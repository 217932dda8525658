"""What the kernel says of the TCP connections to the gRPC port (Linux; nothing elsewhere).

gRPC keeps its sockets to itself. But they are files of this process, so those that came in at our port can be found and
asked (`TCP_INFO`) without being opened a second time, which would keep closed ones alive. That takes some ten
microseconds each, so it is done when somebody wants to know, and seldom enough. A connection that closes keeps what was
last seen of it.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

IPV4_BYTES, IPV6_BYTES, TCP_BYTES, TIMESTAMPS_BYTES = 20, 40, 20, 12
IPV4_AS_IPV6 = "::ffff:"
FILES = "/proc/self/fd"

# in struct tcp_info: u8 tcpi_state, u8 tcpi_options, u64 tcpi_bytes_received, u32 tcpi_segs_out and tcpi_segs_in, u64
# tcpi_bytes_sent (since Linux 4.19; repeats are in it)
STATE_AT, OPTIONS_AT, RECEIVED_AT, SEGMENTS_AT, SENT_AT = 0, 5, 128, 136, 200
TCP_INFO_BYTES = SENT_AT + 8
LISTENS = 10
TIMESTAMPS = 1


@dataclass(frozen=True)
class WireCount:
    """Bytes of TCP segments, with the headers of TCP and IP."""

    sent: int = 0
    received: int = 0

    def __add__(self, other: WireCount) -> WireCount:
        return WireCount(self.sent + other.sent, self.received + other.received)


class Connections:
    """All that ever came in at `port` while somebody looked. One thread at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: dict[str, WireCount] = {}
        self._closed = WireCount()

    def __len__(self) -> int:
        """Those that were open when last looked at."""
        return len(self._open)

    @property
    def can_look(self) -> bool:
        """Whether this system tells."""
        return sys.platform == "linux"

    @property
    def wire(self) -> WireCount:
        return sum(self._open.values(), self._closed)

    def look(self) -> None:
        """Ask the kernel."""
        now = wire_counts(self._port)
        for name in self._open.keys() - now.keys():
            self._closed += self._open[name]
        self._open = now


def wire_counts(port: int) -> dict[str, WireCount]:
    """Of each connection that came in at a port of this process, by the name that the kernel gives its socket."""
    if sys.platform != "linux":
        return {}
    found = {}
    with os.scandir(FILES) as files:
        for file in files:
            try:
                name = os.readlink(file.path)  # noqa: PTH115 - a Path for each of a thousand takes longer than this
                count = _count(int(file.name), port) if name.startswith("socket:") else None
            except OSError:
                continue  # it was closed meanwhile, or is no connection
            if count is not None:
                found[name] = count
    return found


@contextmanager
def _borrowed(file: int) -> Iterator[socket.socket]:
    """A file of somebody else's as a socket, which is not closed afterwards."""
    own = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=file)
    try:
        yield own
    finally:
        own.detach()


def _count(file: int, port: int) -> WireCount | None:
    """None if this is not a connection to that port. Raises OSError."""
    with _borrowed(file) as own:
        address = own.getsockname()
        if not isinstance(address, tuple) or address[1] != port:
            return None
        told = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    ipv4 = len(address) == 2 or address[0].startswith(IPV4_AS_IPV6)
    return parse_tcp_info(told, IPV4_BYTES if ipv4 else IPV6_BYTES)


def parse_tcp_info(told: bytes, ip_bytes: int) -> WireCount | None:
    """`ip_bytes`: of a header. None if this socket listens, or the kernel is too old to tell."""
    if len(told) < TCP_INFO_BYTES or told[STATE_AT] == LISTENS:
        return None
    (received,) = struct.unpack_from("=Q", told, RECEIVED_AT)
    segments_sent, segments_received = struct.unpack_from("=II", told, SEGMENTS_AT)
    (sent,) = struct.unpack_from("=Q", told, SENT_AT)
    header = ip_bytes + TCP_BYTES + (TIMESTAMPS_BYTES if told[OPTIONS_AT] & TIMESTAMPS else 0)
    return WireCount(sent + segments_sent * header, received + segments_received * header)
