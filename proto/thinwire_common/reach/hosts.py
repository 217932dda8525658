"""Takes addresses apart, and tells this machine from others."""

from __future__ import annotations

import ipaddress
import re
import socket
from ipaddress import IPv4Address, IPv6Address
from typing import Any

AUTHORITY = re.compile(r"(?:(localhost)|([0-9.]+)|\[([0-9a-f:.]+)\])(?::([0-9]{1,5}))?", re.ASCII | re.IGNORECASE)
HTTP_PORT = 80
ANY_PORT = 9
"""A port for a datagram that is never sent."""

HOST = re.compile(r"\[[0-9a-fA-F:.]{2,45}\]|[0-9A-Za-z._-]{1,255}")
"""An IPv6 address in brackets, an IPv4 address, or a name; underscores are usual among containers."""


def split_address(address: str) -> tuple[str, int]:
    """Host, without brackets, and port of HOST:PORT."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine for sure, without asking a name server."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_local_or_literal(authority: str, port: int) -> bool:
    """Whether the Host of a request is localhost or an IP address, with this port. Without a port it means HTTP's."""
    found = AUTHORITY.fullmatch(authority)
    if found is None or int(found[4] or HTTP_PORT) != port:
        return False
    try:
        return bool(found[1] or (found[2] and ipaddress.IPv4Address(found[2])) or ipaddress.IPv6Address(found[3]))
    except ValueError:
        return False


def own_address(family: socket.AddressFamily, target: tuple[Any, ...]) -> IPv4Address | IPv6Address | None:
    """This machine's address on the way to a target, as `getaddrinfo` names it. Sends nothing. None: there is none."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target[0], ANY_PORT, *target[2:]))
            return ipaddress.ip_address(str(probe.getsockname()[0]).partition("%")[0])
    except OSError:
        return None  # it cannot be reached at all
