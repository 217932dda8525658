"""The address from which this machine would reach another."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

ANY_PORT = 9
"""A port for a datagram that is never sent."""


def own_address(family: socket.AddressFamily, target: tuple[Any, ...]) -> IPv4Address | IPv6Address | None:
    """This machine's address on the way to a target, as `getaddrinfo` names it. Sends nothing. None: there is none."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target[0], ANY_PORT, *target[2:]))
            return ip_address(str(probe.getsockname()[0]).partition("%")[0])
    except OSError:
        return None  # it cannot be reached at all
