"""The report: a node's current state, as the terminal, the metrics and `thinwire-node status` show it.

This module only defines the report and its parts; `observe.reporter` creates it. A reader thus need not import the
training code.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from importlib.metadata import version
from typing import Literal

from thinwire_proto.wire.reasons import OUTCOMES

NAME_DIGITS = 8
"""The coordinator shows as many."""


def short_name(node_id: str) -> str:
    """The first digits of a node's id."""
    return node_id[:NAME_DIGITS]


STATES = (
    "starting",
    "connecting",
    "fetching",
    "catching up",
    "waiting",
    "training",
    "delivering",
    "resting",
    "paused",
    "leaving",
    "left",
)
TAKES_PART = ("waiting", "training", "delivering")
"""States of a node that is in a session and holds the swarm's replica."""
VERSION = version("thinwire")
BLOB_SOURCES = ("url", "coordinator")


@dataclass(frozen=True)
class Edge:
    """An edge of a node. member: number of the peer. line: direct, relay or away. iteration: of the peer's newest
    message; None before the first. node_id: of the peer; empty if it is not known."""

    member: int
    line: Literal["direct", "relay", "away"]
    iteration: int | None = None
    node_id: str = ""


@dataclass(frozen=True)
class Peers:
    """The peers of a node, in a gossip run; also without a session, as iterations go on. topology: the newest that it
    knows; 0: none yet. waited_s: time that iterations waited for messages. direct: peers that are there by a direct
    line. sent_bytes_by_line, received_bytes_by_line: of messages, by direct and relay."""

    topology: int
    present: int
    absent: int
    waited_s: float
    direct: int = 0
    sent_bytes_by_line: dict[str, int] = field(default_factory=dict)
    received_bytes_by_line: dict[str, int] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)


@dataclass(frozen=True)
class RankView:
    """A process of a node of several. compute_s: time of its micro-batches. It holds waits for the others where the
    processes divide the model, or the rule steps with each gradient. memory_bytes: see `Device`."""

    compute_s: float
    memory_bytes: int | None


@dataclass(frozen=True)
class PartView:
    """The view of a part for observers. words: what it does; goes_on: whether it does so without a session too. step:
    how far its replica is. head_step: sealed updates, as far as the node knows. to_deliver: contributions without a
    receipt. Times are in seconds. None: not known yet, or no round is open to the node. peers: None in a star run.
    ranks: of a node of several processes; empty before their first micro-batch."""

    words: str
    goes_on: bool = False
    step: int | None = None
    head_step: int | None = None
    round: int | None = None
    round_left_s: float | None = None
    clock_error_s: float | None = None
    to_deliver: int = 0
    peers: Peers | None = None
    ranks: list[RankView] = field(default_factory=list)


@dataclass
class Counts:
    """A node's work since its process started, and figures of its newest contribution."""

    counted: int = 0
    not_counted: int = 0
    not_counted_why: str = ""
    """Reason of the newest contribution that was not counted."""
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    """Contributions by outcome, including claims without samples."""
    tokens: int = 0
    """Tokens in counted contributions."""
    samples: int = 0
    """Samples trained, counted or not."""
    dropped: int = 0
    """Micro-batches dropped because they were not finite."""
    too_old: int = 0
    """Gradients dropped because their base was too old."""
    samples_skipped: int = 0
    """Samples passed over because their shard could not be read."""
    shards_skipped: int = 0
    """Times that a shard was found to be unreadable."""
    fetched_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BLOB_SOURCES, 0))
    """Bytes of blobs that were fetched whole, by kind of source."""
    resyncs: int = 0
    mismatches: int = 0
    clock_jumps: int = 0
    sessions: int = 0
    sessions_lost: int = 0

    # figures of the newest contribution or micro-batch
    loss: float | None = None
    components: int | None = None
    payload_bytes: int | None = None
    slack_s: float | None = None
    """Time from its arrival to its round's deadline."""
    micro_batch: int | None = None


@dataclass(frozen=True)
class Tally:
    """A sum of what a node gave. counted: contributions, or iterations of a gossip run. tokens: in them. compute_s:
    time of forward and backward passes. sent, received: bytes, those of TCP where the system counts them. joules: see
    `observe.reporter`; 0 where the machine does not tell it."""

    counted: int = 0
    tokens: int = 0
    compute_s: float = 0.0
    sent: int = 0
    received: int = 0
    joules: float = 0.0

    def plus(self, other: Tally) -> Tally:
        return Tally(*(mine + more for mine, more in zip(astuple(self), astuple(other), strict=True)))

    def minus(self, other: Tally) -> Tally:
        return Tally(*(mine - less for mine, less in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Bytes:
    """Traffic since the process started. sent, received: payload bytes by kind. sent_s, received_s: bytes per second
    over the last minute. wire_sent, wire_received: None where the system does not count them. upload_s: bytes per
    second of the last contributions."""

    sent: dict[str, int]
    received: dict[str, int]
    sent_s: float
    received_s: float
    wire_sent: int | None
    wire_received: int | None
    upload_s: float | None


@dataclass(frozen=True)
class Device:
    """The training device. jobs: of the compute thread that wait or run."""

    name: str
    memory_bytes: int | None
    memory_limit_bytes: int | None
    jobs: int


@dataclass(frozen=True)
class Report:
    """A node's state at one moment. All values are plain, so it can be written as JSON and read again.

    at_s: time of day, in seconds since the epoch. state: one of STATES. words: the state for people, with details such
    as what the node waits for. steps, round_length_s: of the contract. data_wait_s: time that training waited for data.
    tokens_s: tokens trained per second, over the last minute. loss_unit: what the loss is the mean of: "token", or
    "pair" of preferences. ended_by: the error that has ended the node; empty: none has. today, in_all: what the node
    gave on the local date `day`, and ever, over all processes of this state directory. limits_file: the file of the
    node's limits; empty: the one in its state directory."""

    at_s: float
    version: str
    name: str
    address: str
    state: str
    words: str
    part: PartView
    given: Counts
    bytes: Bytes
    device: Device
    steps: int | None = None
    round_length_s: float | None = None
    lease_samples: int | None = None
    data_wait_s: float = 0.0
    tokens_s: float = 0.0
    loss_unit: str = "token"
    ended_by: str = ""
    day: str = ""
    today: Tally = Tally()
    in_all: Tally = Tally()
    limits_file: str = ""
