"""Counts of a node's work since the process started.

The record outlives sessions. `report.py` takes all its figures from here."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from dataclasses import dataclass, field

from thinwire_common.logs import tell
from thinwire_common.traffic import Traffic
from thinwire_node.exchange.port import Outcome
from thinwire_node.training.lent_time import LentTime
from thinwire_node.training.speed import Speed, Tail
from thinwire_proto.wire.reasons import OUTCOMES

log = logging.getLogger("thinwire.node")

PHASES = ("compute", "encode", "upload", "receipt", "apply", "wait", "data", "evaluate", "peers", "rest")
BLOB_SOURCES = ("url", "coordinator")
BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Outcomes of a contribution: counted, or the reason why not."""


class Durations:
    """A histogram of durations.

    counts[i]: durations in (BOUNDS_S[i - 1], BOUNDS_S[i]]. The last element counts durations above the last bound."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


@dataclass(frozen=True)
class Pause:
    """The organizer has paused the run. text: until when, and why. resumes: the time on this node's clock at which it
    goes on; infinity if nobody has said."""

    text: str
    resumes: float


@dataclass
class Record:
    """Counts since the process started, and figures of the newest contribution."""

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
    samples_skipped: int = 0
    """Samples passed over because their shard could not be read."""
    samples_skipped_reported: int = 0
    shards_skipped: int = 0
    """Times that a shard was found to be unreadable."""
    fetched_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BLOB_SOURCES, 0))
    """Bytes of blobs that were fetched whole, by kind of source."""
    resyncs: int = 0
    mismatches: int = 0
    clock_jumps: int = 0
    sessions: int = 0
    sessions_lost: int = 0
    pause: Pause | None = None
    """What the coordinator has said last."""

    # figures of the newest contribution or micro-batch
    loss: float | None = None
    components: int | None = None
    payload_bytes: int | None = None
    slack_s: float | None = None
    micro_batch: int | None = None

    traffic: Traffic = field(default_factory=Traffic)
    phases: dict[str, Durations] = field(default_factory=lambda: {phase: Durations() for phase in PHASES})
    tail: Tail = field(default_factory=Tail)
    speed: Speed = field(default_factory=Speed)
    measuring: Speed = field(default_factory=Speed)
    lent: LentTime = field(default_factory=LentTime)

    def paused(self, text: str, resumes_in_s: float | None, now: float) -> None:
        """The coordinator says that the run is paused."""
        self.pause = Pause(text, now + (math.inf if resumes_in_s is None else resumes_in_s))

    def goes_on(self) -> None:
        """The coordinator says something else."""
        self.pause = None

    def trained(self, samples: int, seconds: float, compute_s: float, now: float) -> None:
        """Record a micro-batch that was just trained. seconds: with the wait for the compute thread; compute_s: without
        it."""
        self.samples += samples
        self.micro_batch = samples
        self.speed.trained(samples, seconds + self.lent.computed(samples, compute_s, now))
        self.phases["compute"].add(compute_s)

    def measured(self, samples: int, seconds: float, now: float) -> None:
        """Record a batch of held-out samples that was just measured."""
        self.measuring.trained(samples, seconds + self.lent.computed(samples, seconds, now))
        self.phases["evaluate"].add(seconds)

    def encoded(self, loss: float, components: int, payload_bytes: int, seconds: float) -> None:
        """Record a contribution that is extracted and ready to send."""
        self.loss = loss
        self.components = components
        self.payload_bytes = payload_bytes
        self.tail.encoded(seconds)
        self.phases["encode"].add(seconds)

    def skipped_since_report(self) -> int:
        """Samples passed over since the last call."""
        skipped, self.samples_skipped_reported = (
            self.samples_skipped - self.samples_skipped_reported,
            self.samples_skipped,
        )
        return skipped

    def heard(self, outcome: Outcome) -> None:
        """Record the outcome of a claim."""
        self.outcomes[outcome.reason.value] += 1


def tell_totals(record: Record, done: str) -> None:
    """Log the totals of a process that ends. done: in the run, in words."""
    sent, received = record.traffic.sent.total_bytes, record.traffic.received.total_bytes
    text = (
        f"since this process began: {done}, {record.dropped} micro-batches dropped, {record.resyncs} resyncs, "
        f"{record.tokens:,} tokens, {sent:,} bytes up, {received:,} bytes down"
    )
    tell(
        log,
        logging.INFO,
        "node.totals",
        text,
        counted=record.counted,
        not_counted=record.not_counted,
        dropped=record.dropped,
        resyncs=record.resyncs,
        tokens=record.tokens,
        sent_bytes=sent,
        received_bytes=received,
    )
