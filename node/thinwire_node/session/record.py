"""Counts of a node's work since the process started.

The record outlives sessions. A report takes all its figures from here."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from copy import copy
from dataclasses import dataclass, field, fields

from thinwire_common.logs import tell
from thinwire_common.traffic import Traffic
from thinwire_node.exchange.port import Outcome
from thinwire_node.report import Counts
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_node.training.speed import LentTime, Speed, Tail

log = logging.getLogger("thinwire.node")

PHASES = ("compute", "encode", "upload", "receipt", "apply", "wait", "data", "evaluate", "peers", "rest")
BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


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
class Record(Counts):
    """The counts of a report, and what a node measures of itself."""

    samples_skipped_reported: int = 0
    tokens_a_sample: int = 0
    """See `DataSource.tokens_a_sample`. Set by each session."""
    pause: Pause | None = None
    """What the coordinator has said last."""
    resting: str = ""
    """Until when the owner's limits let the node rest, and why; empty: it works."""
    upload_max: float | None = None
    """Bytes per second that the owner lets the node send; None: there is no limit."""
    traffic: Traffic = field(default_factory=Traffic)
    phases: dict[str, Durations] = field(default_factory=lambda: {phase: Durations() for phase in PHASES})
    tail: Tail = field(default_factory=Tail)
    speed: Speed = field(default_factory=Speed)
    measuring: Speed = field(default_factory=Speed)
    lent: LentTime = field(default_factory=LentTime)
    at_once: MicroBatch = field(default_factory=MicroBatch)
    """Of each process of the node."""
    ranks: int = 1
    """The processes of the node, which divide a micro-batch."""
    base_bits: int | None = None
    """Bits a parameter in which a frozen base is held; None: those of its files, or there is none."""
    moments_on_host: bool = False
    """Whether momentum and moments are in the machine's memory, because the card is too small for them."""

    def paused(self, text: str, resumes_in_s: float | None, now: float) -> None:
        """The coordinator says that the run is paused."""
        self.pause = Pause(text, now + (math.inf if resumes_in_s is None else resumes_in_s))

    def goes_on(self) -> None:
        """The coordinator says something else."""
        self.pause = None

    def counts(self) -> Counts:
        return Counts(**{of.name: copy(getattr(self, of.name)) for of in fields(Counts)})

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
        self.loss = loss
        self.components = components
        self.payload_bytes = payload_bytes
        self.tail.encoded(seconds)
        self.phases["encode"].add(seconds)

    def skipped_since_report(self) -> int:
        skipped, self.samples_skipped_reported = (
            self.samples_skipped - self.samples_skipped_reported,
            self.samples_skipped,
        )
        return skipped

    def heard(self, outcome: Outcome) -> None:
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
