"""Groups addresses by the network that one person can easily have: an IPv4 /24, or an IPv6 /56."""

from __future__ import annotations

import ipaddress

IPV4_PREFIX = 24
IPV6_PREFIX = 56


def group_of(address: str) -> str:
    """The group of an address without a port; empty if it is no address."""
    try:
        found = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return ""
    if found.version == 6 and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    prefix = IPV4_PREFIX if found.version == 4 else IPV6_PREFIX
    return str(ipaddress.ip_network((found, prefix), strict=False))
