"""The options that a volunteer chooses for this machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from thinwire_node.data_addresses import PUBLIC, DataAddresses
from thinwire_node.peer_settings import PeerSettings
from thinwire_node.storage.blob_cache import CACHE_BYTES


@dataclass(frozen=True)
class NodeOptions:
    """The options of one node.

    name: shown to people; empty: the first digits of the node's id. micro_batch: maximum samples in a micro-batch.
    rounds: the node leaves after this many counted contributions; None: it stays until the run is complete.
    compute_share: the share of the time that forward and backward passes may take, more than 0 and at most 1.
    cache_bytes: bound on the blobs that it keeps. addresses: the addresses of a contract that it may read. peers: how
    other nodes reach it, in a gossip run."""

    name: str
    micro_batch: int
    rounds: int | None
    cache_bytes: int = CACHE_BYTES
    addresses: DataAddresses = PUBLIC
    peers: PeerSettings = field(default_factory=PeerSettings)
    compute_share: float = 1.0
