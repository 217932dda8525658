"""Addresses: where nodes find the coordinator, whether they can reach it, and who calls through a proxy."""

from __future__ import annotations

import enum
import ipaddress
import socket
from collections.abc import Callable, Container, Sequence
from typing import TypeAlias

from thinwire_common.options import host_and_port
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.invite import ADDRESS

FAR = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses for documentation (RFC 5737 and 3849). A UDP socket that is connected to them sends nothing."""


def checked_address(text: str) -> str:
    """HOST:PORT as it may stand in an invite; an IPv6 address needs brackets. Raises ValueError."""
    host, port = host_and_port(text, port_min=1)
    if not ADDRESS.fullmatch(text):
        raise ValueError(f"{text!r} is not HOST:PORT, as in swarm.example.org:7700 or [2001:db8::1]:7700")
    return f"{host}:{port}"


def address_for_invites(listen: str, port: int) -> str:
    """HOST:PORT in invites, for a coordinator that listens on `listen` with this port. Raises ConfigError."""
    host = listen.rpartition(":")[0].strip("[]")
    if is_any(host):
        host = outgoing_host()
    text = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        return checked_address(text)
    except ValueError:
        raise ConfigError(f"{text} cannot stand in invites; give --address HOST:PORT") from None


IpAddress: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"


def parsed(host: str) -> IpAddress | None:
    """An IP address without a port; None if it is none. A socket for both families shows IPv4 addresses in IPv6."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def network_of(host: str, ipv4_bits: int = 32, ipv6_bits: int = 64) -> str:
    """The network that counts as one caller: an IPv4 address, or a /64 of IPv6, which a home or a rented server has at
    least. Empty if the host is no address."""
    address = parsed(host)
    if address is None:
        return ""
    bits = ipv4_bits if address.version == 4 else ipv6_bits
    return str(address) if bits == address.max_prefixlen else str(ipaddress.ip_network((address, bits), strict=False))


def group_of(host: str) -> str:
    """The network that one person can easily have: an IPv4 /24, or an IPv6 /56. Empty if the host is no address."""
    return network_of(host, 24, 56)


def is_any(host: str) -> bool:
    """Whether this means all addresses of the machine."""
    address = parsed(host)
    return address.is_unspecified if address is not None else not host


def outgoing_host() -> str:
    """The address that this machine uses towards the internet; the loopback if it has no network."""
    for family, far in FAR:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


# Each proxy adds the address that it was called from at the end of the list. What stands before the entries of the
# proxies that the organizer named, the client may have written itself. So only the last entry that is no such proxy
# counts, and only if it came from one.

HEADER = "x-forwarded-for"
SIGNS = (HEADER, "forwarded", "via", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
"""Headers that a proxy adds, and no browser."""
LENGTH_MAX = 1 << 10
"""Characters of the header that are read, from its end."""


def client_of(host: str, forwarded: Sequence[str], is_proxy: Callable[[str], bool]) -> str:
    """The IP address of a client. host: that of the connection. forwarded: the values of the header, in their order."""
    if not is_proxy(host):
        return host
    found = host
    for entry in reversed(",".join(forwarded)[-LENGTH_MAX:].split(",")):
        address = _address(entry.strip())
        if address is None:
            break
        found = address
        if not is_proxy(address):
            break
    return found


def is_forwarded(headers: Container[str]) -> bool:
    """Whether a request came through a proxy, even one that the organizer has not named. headers: their names."""
    return any(name in headers for name in SIGNS)


def _address(text: str) -> str | None:
    """The IP address of an entry, which may have a port; None if it has none."""
    if text.startswith("["):
        text, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            return None
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


# `classify` knows what kind of address it is, without asking anybody. A connection of the coordinator to itself through
# that address (`invite_address`) shows more. But a router may refuse such a connection from inside although it lets in
# those from outside ("hairpin"). So a failure at a public address is a warning, not an error.

CGNAT = ipaddress.ip_network("100.64.0.0/10")
"""Addresses that providers share between customers (RFC 6598)."""
PRIVATE = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
"""RFC 1918 and RFC 4193."""


class Reach(enum.Enum):
    """The hosts that can reach an address."""

    MACHINE = "this machine alone"
    LINK = "the machines on the same cable or Wi-Fi alone"
    HOME = "the machines of this network alone"
    PROVIDER = "nobody outside of the provider's network"
    EVERYBODY = "everybody, if no router or firewall is in the way"
    NOBODY = "nobody: the name has no address"


def classify(addresses: Sequence[str]) -> Reach:
    """Say who can reach a host with these IP addresses; the best of them counts. None at all: the name is not known."""
    order = list(Reach)[:-1]
    return max((_reach(address) for address in addresses), key=order.index, default=Reach.NOBODY)


def _reach(text: str) -> Reach:
    address = parsed(text)
    assert address is not None
    if address.is_loopback or address.is_unspecified:
        return Reach.MACHINE
    if address.is_link_local:
        return Reach.LINK
    if any(address in network for network in PRIVATE):
        return Reach.HOME
    return Reach.PROVIDER if address in CGNAT else Reach.EVERYBODY


def advice(reach: Reach, address: str, port: int, *, reached: bool) -> list[str]:
    """Advise on ways for others to join, a line for each; empty if there is nothing to do.

    address: HOST:PORT in invites. port: on which this coordinator listens. reached: whether it reached itself there.
    """
    if reach is Reach.EVERYBODY and reached:
        return []
    if reach is Reach.NOBODY:
        return [f"correct the name in --address {address}, or wait until the name server knows it"]
    if reach is Reach.EVERYBODY:
        outside = address.rpartition(":")[2]
        return [
            f"if the coordinator is behind a router, forward TCP port {outside} there to port {port} of this machine, "
            "and open it in the firewall",
            "some routers refuse connections from inside to their own address: to be sure, try an invite from another "
            "network, as from a phone's",
        ]
    if reach is Reach.MACHINE:
        return [f"to let others join, listen on the network: --listen 0.0.0.0:{port}, or --listen '[::]:{port}'"]
    lines = [f"in this network, nodes can join at {address}; for nodes elsewhere, one of these:"]
    if reach is Reach.HOME:
        lines.append(
            f"- forward one port: in the router, TCP port {port} to port {port} of this machine; then --address "
            f"YOUR-PUBLIC-ADDRESS:{port}"
        )
    return [
        *lines,
        f"- IPv6: if this machine has a public IPv6 address, open TCP port {port} for it in the router, and --listen "
        f"'[::]:{port}' --address '[YOUR-IPV6-ADDRESS]:{port}'",
        f"- a tunnel from any machine with a public address: ssh -N -R '*:{port}:127.0.0.1:{port}' THAT-MACHINE; then "
        f"--address THAT-MACHINE:{port}",
        "- a proxy on port 443, which most networks let out: have it pass TCP on to this machine; then --address "
        "THAT-MACHINE:443",
    ]
