"""Says whether nodes can reach the address in invites, and what to do if not.

`classify` knows what kind of address it is, without asking anybody. A connection of the coordinator to itself through
that address (`invite_address`) shows more. But a router may refuse such a connection from inside although it lets in
those from outside ("hairpin"). So a failure at a public address is a warning, not an error.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Sequence

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
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
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
