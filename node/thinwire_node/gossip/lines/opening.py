"""Decides which end of a direct line dials, and which addresses of others a node connects to. Pure.

An address of a peer is what a stranger has said. So a node connects to the public internet alone, and to networks that
its volunteer allows or has entered anyway: those that the coordinator is in.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from ipaddress import ip_address

from thinwire_common.reach.happy_eyeballs import Address, Refusal
from thinwire_common.reach.hosts import is_loopback
from thinwire_node.data_addresses import LOOPBACK, PRIVATE, DataAddresses, IpAddress, IpNetwork

SCHEME = "https"
"""Lines speak TLS; `DataAddresses` allows that scheme for all networks alike."""


class Opening(Enum):
    """The part of this end in opening a line."""

    DIAL = "dial"
    AWAIT = "await"
    RELAY = "relay"


def opening(own: str, peer: str, address: str, *, listens: bool, dials: bool) -> Opening:
    """own, peer: node ids. address: of the peer; empty if it does not listen. listens, dials: whether this end does.

    If both listen, the end with the smaller id dials."""
    if dials and address and (not listens or own < peer):
        return Opening.DIAL
    return Opening.AWAIT if listens else Opening.RELAY


def networks_of(coordinator: str) -> tuple[IpNetwork, ...]:
    """The networks beside the public internet that a node is in with its coordinator. coordinator: its host.

    Whoever has the coordinator on the own machine may also have it for the network of that machine."""
    if is_loopback(coordinator):
        return LOOPBACK + PRIVATE
    try:
        address = ip_address(coordinator.strip("[]").partition("%")[0])
    except ValueError:
        return ()  # a name may lead anywhere
    return PRIVATE if any(address in network for network in PRIVATE) else ()


def refusal_of(
    networks: tuple[IpNetwork, ...], own_address: Callable[[Address], IpAddress | None] = lambda _: None
) -> Refusal:
    """Says why a peer's address must not be connected to. networks: that are allowed beside the public internet.
    own_address: this machine's, on the way there."""
    allowed = DataAddresses(networks=networks)

    def refusal(address: Address) -> str:
        target = ip_address(str(address[1][0]).partition("%")[0])
        return allowed.refusal(target, SCHEME, own_address(address))

    return refusal
