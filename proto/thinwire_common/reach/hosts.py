"""Takes addresses apart, and tells this machine from others."""

from __future__ import annotations

import ipaddress


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
