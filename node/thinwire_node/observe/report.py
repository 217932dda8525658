"""The report: a node's current state, as the terminal, the metrics and `thinwire-node status` show it.

This module only defines the report; `reporter` creates it. A reader thus need not import the training code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version

from thinwire_node.peers import Peers

STATES = (
    "starting",
    "connecting",
    "fetching",
    "catching up",
    "waiting",
    "training",
    "delivering",
    "leaving",
    "left",
)
TAKES_PART = ("waiting", "training", "delivering")
"""States of a node that is in a session and holds the swarm's replica."""
VERSION = version("thinwire")


@dataclass(frozen=True)
class RunPosition:
    """The node's position in the run. None: not known yet, or no round is open to the node."""

    step: int | None = None
    head_step: int | None = None
    """Sealed updates, as far as the node knows."""
    steps: int | None = None
    parameters: int | None = None
    round: int | None = None
    round_length_s: float | None = None
    round_left_s: float | None = None
    k: int | None = None
    lease_samples: int | None = None


@dataclass(frozen=True)
class Given:
    """The node's work since the process started."""

    counted: int
    not_counted: int
    not_counted_why: str
    """Reason of the newest contribution that was not counted; empty if there is none."""
    outcomes: dict[str, int]
    tokens: int
    """Tokens in counted contributions."""
    samples: int
    """Samples trained, counted or not."""
    tokens_s: float
    """Tokens trained per second, over the last minute."""
    micro_batches_dropped: int
    gradients_dropped: int
    resyncs: int
    mismatches: int
    sessions: int
    sessions_lost: int
    # figures of the newest contribution or micro-batch
    loss: float | None
    components: int | None
    component_bits: float | None
    slack_s: float | None
    """Time from its arrival to its round's deadline."""
    micro_batch_samples: int | None
    samples_skipped: int = 0
    """Samples passed over because their shard could not be read."""
    shards_skipped: int = 0
    data_wait_s: float = 0.0
    """Time that training waited for data."""
    fetched_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes of shards and base weights fetched, by kind of source."""


@dataclass(frozen=True)
class Clock:
    """The node's estimate of the coordinator's clock."""

    offset_s: float | None
    error_s: float | None
    jumps: int


@dataclass(frozen=True)
class Bytes:
    """Traffic since the process started. sent, received: payload bytes by kind. sent_s, received_s: bytes per second
    over the last minute. wire_sent, wire_received: None where the system does not count them."""

    sent: dict[str, int]
    received: dict[str, int]
    sent_messages: dict[str, int]
    received_messages: dict[str, int]
    sent_s: float
    received_s: float
    wire_sent: int | None
    wire_received: int | None
    upload_s: float | None
    """Upload rate of the last contributions, in bytes per second."""


@dataclass(frozen=True)
class Device:
    """The training device, and the queues of the node."""

    name: str
    memory_bytes: int | None
    memory_limit_bytes: int | None
    jobs: int
    """Jobs of the compute thread that wait or run."""
    to_deliver: int
    """Contributions without a receipt."""


@dataclass(frozen=True)
class Report:
    """A node's state at one moment. All values are plain, so it can be written as JSON and read again."""

    at_s: float
    """Time of day, in seconds since the epoch."""
    version: str
    name: str
    address: str
    state: str
    """One of STATES."""
    words: str
    """The state for people, with details such as what the node waits for."""
    place: RunPosition
    given: Given
    clock: Clock
    bytes: Bytes
    device: Device
    peers: Peers | None = None
    """None in a star run, or if the node does not know the run yet."""
