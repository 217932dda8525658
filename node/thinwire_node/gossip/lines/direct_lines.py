"""What a node needs for direct lines: the port that it listens on, the addresses that it may connect to, and times."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address

from thinwire_common.logs import tell
from thinwire_common.reach.happy_eyeballs import Address, Refusal
from thinwire_common.reach.hosts import is_loopback, own_address
from thinwire_node.data_addresses import LOOPBACK, PRIVATE, DataAddresses, IpAddress, IpNetwork
from thinwire_node.gossip.lines.server import PeerServer
from thinwire_node.limits.throttle import Throttle
from thinwire_node.settings import NodeOptions
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.limits import ACCEPT_S, PEER_DIRECT_S, PEER_RETRY_FIRST_S, PEER_RETRY_MAX_S

log = logging.getLogger("thinwire.node")

NOT_LISTENING = "with limits on traffic, the node does not listen for peers; it connects to those that do"


@dataclass(frozen=True)
class DirectLines:
    """The means of direct lines. server: on which it listens; None: it does not. listens_at: HOST:PORT, or :PORT,
    at which peers reach it. refusal: of addresses that it does not connect to; None: it connects to none. throttle:
    paces the lines, if the owner limits the traffic."""

    server: PeerServer | None = None
    listens_at: str = ""
    refusal: Refusal | None = None
    throttle: Throttle | None = None

    @property
    def is_paced(self) -> bool:
        return self.throttle is not None and self.throttle.is_needed


@dataclass(frozen=True)
class LineTimes:
    """In seconds; see `limits`. first_s, max_s: pauses before a line is begun again. direct_s: for a direct connection,
    before the relay is used. accept_s: for a peer to take a parcel."""

    first_s: float = PEER_RETRY_FIRST_S
    max_s: float = PEER_RETRY_MAX_S
    direct_s: float = PEER_DIRECT_S
    accept_s: float = ACCEPT_S


async def open_direct_lines(
    options: NodeOptions,
    coordinator: str,
    key: SecretKey,
    contract_hash: bytes,
    nodes_max: int,
    throttle: Throttle | None = None,
) -> DirectLines:
    """Listen if the volunteer wants that. coordinator: its host. Raises ConfigError."""
    peers, refusal = options.peers, None
    if peers.dials:
        refusal = refusal_of(
            options.addresses.networks + networks_of(coordinator), lambda address: own_address(*address)
        )
    if peers.port is None:
        return DirectLines(refusal=refusal, throttle=throttle)
    if throttle is not None and throttle.is_needed:
        log.warning(NOT_LISTENING)
        return DirectLines(refusal=refusal, throttle=throttle)
    server = PeerServer(key, contract_hash, nodes_max)
    await server.start(peers.host, peers.port)
    listens_at = f"{peers.host}:{server.port}"
    text = f"listening for peers on port {server.port}; they are told {peers.host or 'the address of this connection'}"
    tell(log, logging.INFO, "node.listening", text, port=server.port)
    return DirectLines(server, listens_at, refusal, throttle)


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
    """Says why a peer's address must not be connected to. A stranger has said it, so a node connects to the public
    internet alone, and to networks that its volunteer allows or has entered anyway.

    networks: that are allowed beside the public internet. own_address: this machine's, on the way there."""
    allowed = DataAddresses(networks=networks)

    def refusal(address: Address) -> str:
        target = ip_address(str(address[1][0]).partition("%")[0])
        return allowed.refusal(target, SCHEME, own_address(address))

    return refusal
