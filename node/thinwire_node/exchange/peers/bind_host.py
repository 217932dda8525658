"""The local address that a node listens on for its peers."""

from __future__ import annotations

import socket
from ipaddress import ip_address

ALL = "[::]"
"""All addresses of this machine, IPv4 and IPv6."""


def bind_host(host: str) -> str:
    """The host as gRPC takes it. host: at which peers reach this node: an address of this machine, which is then the
    only one that it listens on; a name, or an address of a router that passes connections on; or empty."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return ALL
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return ALL
    return host if address.version == 4 else f"[{address}]"
