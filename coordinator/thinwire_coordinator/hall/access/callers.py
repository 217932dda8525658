"""The caller of a call: the address that limits apply to, and the session if there is one."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import unquote

IPV6_PREFIX_BITS = 64
"""A household or a server has a whole /64, and may call from each of its 2⁶⁴ addresses."""
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Caller:
    """network: see `network_of`. node_id: of the member whose session the call is in; None for a stranger."""

    network: str
    node_id: str | None = None


def network_of(peer: str) -> str:
    """The IPv4 address or the IPv6 /64 of a peer.

    peer: as gRPC names it: `ipv4:192.0.2.1:5000`, `ipv6:%5B2001:db8::1%5D:5000`. Peers that have no address, such as
    those of a Unix socket, share one name.
    """
    kind, _, rest = unquote(peer).partition(":")
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    if kind not in ("ipv4", "ipv6"):
        return UNKNOWN
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return UNKNOWN
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:  # a socket for both families shows IPv4 so
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, IPV6_PREFIX_BITS), strict=False))
