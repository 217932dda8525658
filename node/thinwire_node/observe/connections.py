"""What the kernel says of this process's TCP connections (Linux; nothing elsewhere).

gRPC keeps its sockets to itself. But they are files of this process, so those that lead to the coordinator's port can
be found and asked (`TCP_INFO`). No copy of them is kept: that would hold a closed connection open.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

IP_BYTES = {socket.AF_INET: 20, socket.AF_INET6: 40}
TCP_BYTES = 20
TIMESTAMPS_BYTES = 12
TIMESTAMPS = 1
"""Of tcpi_options: both ends put timestamps into each segment."""
OPTIONS_AT, RECEIVED_AT, SEGMENTS_AT, SENT_AT = 5, 128, 136, 200
"""In struct tcp_info: u8 tcpi_options, u64 tcpi_bytes_received, u32 tcpi_segs_out and tcpi_segs_in, u64
tcpi_bytes_sent (Linux 4.19; repeats are in it)."""
TCP_INFO_BYTES = 232
FILES = Path("/proc/self/fd")


@dataclass(frozen=True)
class WireCount:
    """Bytes of TCP segments, with the headers of TCP and IP."""

    sent: int
    received: int

    def __add__(self, other: WireCount) -> WireCount:
        return WireCount(self.sent + other.sent, self.received + other.received)


def wire_counts(port: int) -> dict[int, WireCount]:
    """Of each connection to a port of another process, by the number of its file on this machine (inode)."""
    if sys.platform != "linux":
        return {}
    found = {}
    for file in FILES.iterdir():
        try:
            what, _, inode = str(file.readlink()).partition(":")
            count = _count(int(file.name), port) if what == "socket" else None
        except OSError:
            continue  # it was closed meanwhile, or is not connected
        if count is not None:
            found[int(inode.strip("[]"))] = count
    return found


def _count(file: int, port: int) -> WireCount | None:
    """None if this is not a connection to that port. Raises OSError."""
    with socket.socket(fileno=os.dup(file)) as own:
        if own.type != socket.SOCK_STREAM or own.family not in IP_BYTES or own.getpeername()[1] != port:
            return None
        told = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        ip_bytes = IP_BYTES[own.family]
        if own.family == socket.AF_INET6 and own.getpeername()[0].startswith("::ffff:"):
            ip_bytes = IP_BYTES[socket.AF_INET]
    return parse_tcp_info(told, ip_bytes)


def parse_tcp_info(told: bytes, ip_bytes: int) -> WireCount | None:
    """None if the kernel is too old to tell."""
    if len(told) < SENT_AT + 8:
        return None
    (received,) = struct.unpack_from("=Q", told, RECEIVED_AT)
    segments_out, segments_in = struct.unpack_from("=II", told, SEGMENTS_AT)
    (sent,) = struct.unpack_from("=Q", told, SENT_AT)
    header = ip_bytes + TCP_BYTES + (TIMESTAMPS_BYTES if told[OPTIONS_AT] & TIMESTAMPS else 0)
    return WireCount(sent + segments_out * header, received + segments_in * header)
