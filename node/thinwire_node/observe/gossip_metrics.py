"""The metrics of a node in a gossip run: their definitions, and their values from a report."""

from __future__ import annotations

from thinwire_common.metrics import Definition, Definitions
from thinwire_common.traffic import PEER_LINES
from thinwire_node.peers import Peers

METRICS = Definitions("thinwire_node_")

PEER_BYTES = METRICS.counter(
    "peer_bytes_total",
    "Bytes of messages between this node and its peers, in a gossip run. direction: sent, received. line: "
    "direct, relay (through the coordinator).",
    "direction",
    "line",
)
PEERS = METRICS.gauge("peers", "Peers of this node, in a gossip run. line: direct, relay, none (not there).", "line")


def samples(peers: Peers | None) -> dict[Definition, dict[tuple[str, ...], float | None]]:
    """Values by label values. None: not in a gossip run, which has no samples."""
    if peers is None:
        return {PEER_BYTES: {}, PEERS: {}}
    counts = (("sent", peers.sent_bytes_by_line), ("received", peers.received_bytes_by_line))
    return {
        PEER_BYTES: {(direction, line): count[line] for direction, count in counts for line in PEER_LINES},
        PEERS: {("direct",): peers.direct, ("relay",): peers.present - peers.direct, ("none",): peers.absent},
    }
