"""How a node is, now: the one source of what the terminal, the metrics and `thinwire-node status` show.

Only what it looks like; `reporter` makes it. So whoever reads a report need not load what trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

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
"""The node is in a session and holds the swarm's replica."""
VERSION = version("thinwire")


@dataclass(frozen=True)
class RunPosition:
    """Where the node stands in the run. None: not known yet, or no round is open to it."""

    step: int | None = None
    head_step: int | None = None
    """Updates that are sealed, as far as the node knows."""
    steps: int | None = None
    parameters: int | None = None
    round: int | None = None
    round_length_s: float | None = None
    round_left_s: float | None = None
    k: int | None = None
    lease_samples: int | None = None


@dataclass(frozen=True)
class Given:
    """What came of the training, since the process started."""

    counted: int
    not_counted: int
    not_counted_why: str
    """Of the newest one; empty before there is any."""
    outcomes: dict[str, int]
    tokens: int
    """Counted."""
    samples: int
    """Trained."""
    tokens_s: float
    """Trained in a second, over the last minute."""
    micro_batches_dropped: int
    gradients_dropped: int
    resyncs: int
    mismatches: int
    sessions: int
    sessions_lost: int
    # of the newest contribution, or micro-batch
    loss: float | None
    components: int | None
    component_bits: float | None
    slack_s: float | None
    """From its arrival to its round's deadline."""
    micro_batch_samples: int | None


@dataclass(frozen=True)
class Clock:
    """The coordinator's clock as the node knows it."""

    offset_s: float | None
    error_s: float | None
    jumps: int


@dataclass(frozen=True)
class Bytes:
    """Since the process started; payload by kind. A second: over the last minute. Wire: None where it is not told."""

    sent: dict[str, int]
    received: dict[str, int]
    sent_messages: dict[str, int]
    received_messages: dict[str, int]
    sent_s: float
    received_s: float
    wire_sent: int | None
    wire_received: int | None
    upload_s: float | None
    """What the link has carried in a second, by the last contributions."""


@dataclass(frozen=True)
class Device:
    name: str
    memory_bytes: int | None
    memory_limit_bytes: int | None
    jobs: int
    """Of the compute thread, waiting or under way."""
    to_deliver: int


@dataclass(frozen=True)
class Report:
    """Plain values only: it can be written as JSON, and read again."""

    at_s: float
    """By the time of day."""
    version: str
    name: str
    address: str
    state: str
    """One of STATES."""
    words: str
    """The same for people, with what is waited for or fetched."""
    place: RunPosition
    given: Given
    clock: Clock
    bytes: Bytes
    device: Device
