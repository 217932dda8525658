"""Decides which addresses of a contract a node may read. Pure: no socket, no name server.

A contract is from a stranger, and whoever writes it could make a volunteer's machine send requests to the machine
itself, to the router, or to anything else in the volunteer's network (server-side request forgery). So an address may
lead only to the public internet, over https, unless the volunteer allows more. Names prove nothing, because whoever
owns a name chooses where it leads. So the check is made on the address that a name was resolved to, and the connection
goes to the very address that was checked (`guarded_http`).

What is public is decided by the table here, not by `ipaddress`: that module's answers depend on Python's version, and
it takes whatever is not in its list of exceptions for public, ranges that nobody has assigned yet included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

SCHEMES = ("https", "http", "s3", "gs")
"""Schemes that a node can read."""
DEFAULT_SCHEMES = ("https",)
LOOPBACK = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
PRIVATE = (
    IPv4Network("10.0.0.0/8"),
    IPv4Network("172.16.0.0/12"),
    IPv4Network("192.168.0.0/16"),
    IPv6Network("fc00::/7"),
)
NETWORKS: dict[str, tuple[IpNetwork, ...]] = {"loopback": LOOPBACK, "private": PRIVATE}
"""Networks that have a name in the option."""
GLOBAL_UNICAST = (IPv4Network("0.0.0.0/0"), IPv6Network("2000::/3"))
"""The networks that public addresses are assigned from. Everything else of IPv6 is local, reserved or multicast."""
SPECIAL: tuple[IpNetwork, ...] = (
    *map(
        IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24"),
            *("192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
            *("224.0.0.0/4", "240.0.0.0/4"),
        ),
    ),
    *map(
        IPv6Network,
        (
            "2001::/23",  # protocols: Teredo, benchmarks (2001:2::/48), ORCHID (2001:20::/28) and others
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, except as CARRIES_IPV4 says
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    ),
)
"""What IANA has set apart (iana-ipv4-special-registry and iana-ipv6-special-registry of 2025-10-09), and IPv4's
multicast. No machine that serves data has such an address, even where it is routed, as AS112 is."""
CARRIES_IPV4 = {IPv6Network("64:ff9b::/96"): 0, IPv6Network("2002::/16"): 80}
"""IPv6 networks whose addresses lead to an IPv4 address in them (RFC 6052, RFC 3056), and the bits that follow it. A
machine without IPv4 reaches the public IPv4 internet by the first."""
HOME_BITS = 56
"""Providers give a home an IPv6 network of this length or a longer one. All of its addresses are public, so the
volunteer's own network is recognized by the machine's own address."""


@dataclass(frozen=True)
class DataAddresses:
    """The addresses that the volunteer allows. networks: beside the public internet."""

    schemes: frozenset[str] = frozenset(DEFAULT_SCHEMES)
    networks: tuple[IpNetwork, ...] = ()

    def scheme_refusal(self, scheme: str) -> str:
        """Return the reason not to read an address with this scheme; empty if it may be read."""
        if scheme in self.schemes or (scheme == "http" and self._allows_loopback):
            return ""
        if scheme not in SCHEMES:
            return f"a node never reads addresses of {scheme}"
        return f"this node does not read addresses of {scheme} (--data-schemes)"

    def refusal(self, address: IpAddress, scheme: str, own: IpAddress | None = None) -> str:
        """Return the reason not to connect to `address`; empty if the node may.

        own: the address from which this machine would open it."""
        address = _unwrapped(address)
        if scheme == "http" and "http" not in self.schemes and not _is_in(address, LOOPBACK):
            return "this node reads http from its own machine only (--data-schemes)"
        if _is_in(address, self.networks):
            return ""
        if not is_public(address):
            return f"{address} is no address of the public internet (--data-networks)"
        if own is not None and is_at_home(address, _unwrapped(own)):
            return f"{address} is in the network of this machine (--data-networks)"
        return ""

    @property
    def _allows_loopback(self) -> bool:
        return any(
            network.overlaps(own) for network in self.networks for own in LOOPBACK if network.version == own.version
        )


PUBLIC = DataAddresses()


def is_public(address: IpAddress) -> bool:
    """Whether this is the address of one machine in the public internet."""
    address = _led_to(address)
    return _is_in(address, GLOBAL_UNICAST) and not _is_in(address, SPECIAL)


def is_at_home(address: IpAddress, own: IpAddress) -> bool:
    """Whether an address is this machine's own, or of its own IPv6 network."""
    if isinstance(own, IPv4Address) or own.is_link_local:
        return address == own
    return address in IPv6Network((own, HOME_BITS), strict=False)


def read_networks(names: Iterable[str]) -> tuple[IpNetwork, ...]:
    """Networks by name or in CIDR notation. Raises ValueError."""
    found: list[IpNetwork] = []
    for name in names:
        try:
            found += NETWORKS.get(name) or [ip_network(name)]
        except ValueError:
            raise ValueError(
                f"{name!r} is not loopback, private or a network such as 192.168.1.0/24 or fd00::/8"
            ) from None
    return tuple(found)


def _unwrapped(address: IpAddress) -> IpAddress:
    """The IPv4 address of ::ffff:a.b.c.d, and any other address as it is."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _led_to(address: IpAddress) -> IpAddress:
    """The IPv4 address that an address of `CARRIES_IPV4` leads to, and any other address as it is."""
    address = _unwrapped(address)
    found = (bits for network, bits in CARRIES_IPV4.items() if address in network)
    return next((IPv4Address(int(address) >> bits & 0xFFFFFFFF) for bits in found), address)


def _is_in(address: IpAddress, networks: Iterable[IpNetwork]) -> bool:
    return any(address in network for network in networks)
