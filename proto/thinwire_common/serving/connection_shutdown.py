"""Ends the TCP connection of a peer that takes nothing any more (Linux only).

gRPC ends a call with a message to the peer, which waits behind what the peer does not read. So the call, and what it
has buffered, would stay until the peer goes. gRPC does not expose its sockets, so this finds the one that belongs to
the peer among the open files of this process, and shuts it down; gRPC then closes it as if the peer had.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from urllib.parse import unquote

FILES = "/proc/self/fd"


def shut_down_connection(peer: str) -> bool:
    """Shut down the connection of a peer, as gRPC names it (`ipv4:192.0.2.1:5000`). Return whether it was found."""
    _, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if sys.platform != "linux" or not port.isdecimal():
        return False
    wanted = host.strip("[]").partition("%")[0].removeprefix("::ffff:"), int(port)
    for file in os.listdir(FILES):  # noqa: PTH208 - as in thinwire_common.tcp: a Path for each file takes longer
        try:
            if not str(Path(FILES, file).readlink()).startswith("socket:"):
                continue
            if _shut_down(int(file), wanted):
                return True
        except OSError:
            continue  # closed meanwhile, or not a connection
    return False


def _shut_down(file: int, wanted: tuple[str, int]) -> bool:
    own = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=file)
    try:
        address = own.getpeername()
        if not isinstance(address, tuple) or (str(address[0]).removeprefix("::ffff:"), address[1]) != wanted:
            return False
        own.shutdown(socket.SHUT_RDWR)
    finally:
        own.detach()
    return True
