"""Opens what a node needs for direct lines: the port that it listens on, and the addresses that it may connect to."""

from __future__ import annotations

import logging

from thinwire_common.logs import tell
from thinwire_common.reach.happy_eyeballs import Address
from thinwire_common.reach.hosts import own_address
from thinwire_node.data_addresses import IpAddress
from thinwire_node.gossip.lines.line_settings import DirectLines
from thinwire_node.gossip.lines.opening import networks_of, refusal_of
from thinwire_node.gossip.lines.server import PeerServer
from thinwire_node.options import NodeOptions
from thinwire_proto.identity.keys import SecretKey

log = logging.getLogger("thinwire.node")


async def open_direct_lines(
    options: NodeOptions, coordinator: str, key: SecretKey, contract_hash: bytes, nodes_max: int
) -> DirectLines:
    """Listen if the volunteer wants that. coordinator: its host. Raises ConfigError."""
    peers, refusal = options.peers, None
    if peers.dials:
        refusal = refusal_of(options.addresses.networks + networks_of(coordinator), _own)
    if peers.port is None:
        return DirectLines(refusal=refusal)
    server = PeerServer(key, contract_hash, nodes_max)
    await server.start(peers.host, peers.port)
    listens_at = f"{peers.host}:{server.port}"
    text = f"listening for peers on port {server.port}; they are told {peers.host or 'the address of this connection'}"
    tell(log, logging.INFO, "node.listening", text, port=server.port)
    return DirectLines(server, listens_at, refusal)


def _own(address: Address) -> IpAddress | None:
    return own_address(*address)
