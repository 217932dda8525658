"""Settings of a node process, and the options of them that a volunteer chooses for the work."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from thinwire_node.data_addresses import PUBLIC, DataAddresses
from thinwire_node.limits.keeper import LimitsSource
from thinwire_node.peer_settings import PeerSettings
from thinwire_node.resources import ResourceLimits
from thinwire_node.storage.blob_cache import CACHE_BYTES
from thinwire_proto.identity.invite import Invite

if TYPE_CHECKING:
    from thinwire_node.training.ranks import Ranks


@dataclass(frozen=True)
class NodeOptions:
    """The options of one node.

    name: shown to people; empty: the first digits of the node's id. micro_batch: maximum samples in a micro-batch;
    None: as many as fit into memory.
    rounds: the node leaves after this many counted contributions; None: it stays until the run is complete.
    compute_share: the share of the time that forward and backward passes may take, more than 0 and at most 1.
    cache_bytes: bound on the blobs that it keeps. addresses: the addresses of a contract that it may read. peers: how
    other nodes reach it, in a gossip run. base_bits: bits a parameter of a frozen base in memory;
    None: as many as fit. compiles: whether the model is compiled."""

    name: str
    micro_batch: int | None
    rounds: int | None
    cache_bytes: int = CACHE_BYTES
    addresses: DataAddresses = PUBLIC
    peers: PeerSettings = field(default_factory=PeerSettings)
    compute_share: float = 1.0
    base_bits: int | None = None
    compiles: bool = False


@dataclass(frozen=True)
class NodeSettings:
    """The settings of one node process. invite: of the coordinator at `address`; None for one on this machine."""

    address: str
    state_dir: Path
    device: str
    options: NodeOptions
    give_up_after_s: float | None
    limits: ResourceLimits | None = None
    """Bounds on the memory and disk that a contract takes. None: they are not checked."""
    own: LimitsSource | None = None
    """The origin of the limits that hold while the node runs. None: there are none."""
    invite: Invite | None = None
    bases: Path | None = None
    """The folder where the nodes of this machine tell each other of files of bases; None: they do not."""
    ranks: Ranks | None = None
    """The processes of this node, if there are several; this one leads them."""
