"""The TCP connections of this process (Linux only): counts their bytes on the wire, and ends those that take nothing.

gRPC does not expose its sockets. They are open files of this process, so this module finds them there. It does not
duplicate a file descriptor, because a duplicate would keep a closed connection open.

The bytes are the kernel's (`TCP_INFO`). Reading one connection takes about ten microseconds, so callers read only on
request and limit how often. For a connection that closes between two readings, the count of the last reading stays.

gRPC ends a call with a message to the peer, which waits behind what the peer does not read. So the call, and what it
has buffered, would stay until the peer goes. If its connection is shut down here, gRPC closes it as if the peer had.
"""

from __future__ import annotations

import enum
import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

IPV4_BYTES, IPV6_BYTES, TCP_BYTES, TIMESTAMPS_BYTES = 20, 40, 20, 12
IPV4_AS_IPV6 = "::ffff:"
FILES = "/proc/self/fd"

# in struct tcp_info: u8 tcpi_state, u8 tcpi_options, u64 tcpi_bytes_received, u32 tcpi_segs_out and tcpi_segs_in, u64
# tcpi_bytes_sent (since Linux 4.19; retransmissions are in it)
STATE_AT, OPTIONS_AT, RECEIVED_AT, SEGMENTS_AT, SENT_AT = 0, 5, 128, 136, 200
TCP_INFO_BYTES = SENT_AT + 8
LISTENS = 10
TIMESTAMPS = 1
"""Flag in tcpi_options: each segment carries timestamps."""


class End(enum.Enum):
    """The end of a connection that has the port."""

    OURS = "ours"
    THEIRS = "theirs"


@dataclass(frozen=True)
class WireCount:
    """Bytes of TCP segments, including the TCP and IP headers."""

    sent: int = 0
    received: int = 0

    def __add__(self, other: WireCount) -> WireCount:
        return WireCount(self.sent + other.sent, self.received + other.received)


class Connections:
    """The connections with `port` at end `end` that were open at any reading. Use it from one thread at a time."""

    def __init__(self, port: int, end: End) -> None:
        self.port = port
        self._end = end
        self._open: dict[str, WireCount] = {}
        self._closed = WireCount()

    def __len__(self) -> int:
        """The number of connections that were open at the last reading."""
        return len(self._open)

    @property
    def can_look(self) -> bool:
        """Whether this system provides the counters."""
        return sys.platform == "linux"

    @property
    def wire(self) -> WireCount:
        return sum(self._open.values(), self._closed)

    def look(self) -> None:
        """Read the kernel's counters."""
        now = wire_counts(self.port, self._end)
        for name in self._open.keys() - now.keys():
            self._closed += self._open[name]
        self._open = now


def wire_counts(port: int, end: End) -> dict[str, WireCount]:
    """The count of each connection with `port` at end `end`, by the kernel's name of the socket."""
    found = {}
    for name, own in _open_sockets():
        try:
            count = _count(own, port, end)
        except OSError:
            continue  # closed meanwhile, or not a connection
        if count is not None:
            found[name] = count
    return found


def shut_down_connection(peer: str) -> bool:
    """Shut down the connection of a peer, as gRPC names it (`ipv4:192.0.2.1:5000`). Return whether it was found."""
    _, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if not port.isdecimal():
        return False
    wanted = host.strip("[]").partition("%")[0].removeprefix(IPV4_AS_IPV6), int(port)
    for _, own in _open_sockets():
        try:
            address = own.getpeername()
            if isinstance(address, tuple) and (str(address[0]).removeprefix(IPV4_AS_IPV6), address[1]) == wanted:
                own.shutdown(socket.SHUT_RDWR)
                return True
        except OSError:
            continue  # closed meanwhile, or not a connection
    return False


def _open_sockets() -> Iterator[tuple[str, socket.socket]]:
    """The sockets of this process with the kernel's names. Each belongs to somebody else, and is not closed here."""
    if sys.platform != "linux":
        return
    with os.scandir(FILES) as files:
        for file in files:
            try:
                name = os.readlink(file.path)  # noqa: PTH115 - creating a thousand Path objects takes longer than the reading
                if not name.startswith("socket:"):
                    continue
                own = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=int(file.name))
            except OSError:
                continue  # closed meanwhile
            try:
                yield name, own
            finally:
                own.detach()


def _count(own: socket.socket, port: int, end: End) -> WireCount | None:
    """Read the count of one socket; None if it is not a connection with that port. Raises OSError."""
    address = own.getsockname() if end is End.OURS else own.getpeername()
    if not isinstance(address, tuple) or address[1] != port:
        return None
    info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    ipv4 = len(address) == 2 or address[0].startswith(IPV4_AS_IPV6)
    return parse_tcp_info(info, IPV4_BYTES if ipv4 else IPV6_BYTES)


def parse_tcp_info(info: bytes, ip_bytes: int) -> WireCount | None:
    """Decode `struct tcp_info`. ip_bytes: size of an IP header. None if the socket listens or the kernel is too old."""
    if len(info) < TCP_INFO_BYTES or info[STATE_AT] == LISTENS:
        return None
    (received,) = struct.unpack_from("=Q", info, RECEIVED_AT)
    segments_sent, segments_received = struct.unpack_from("=II", info, SEGMENTS_AT)
    (sent,) = struct.unpack_from("=Q", info, SENT_AT)
    header = ip_bytes + TCP_BYTES + (TIMESTAMPS_BYTES if info[OPTIONS_AT] & TIMESTAMPS else 0)
    return WireCount(sent + segments_sent * header, received + segments_received * header)
