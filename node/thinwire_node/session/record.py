"""What a node did since it started. It outlives sessions, and every figure that is shown of a node comes from here
(report.py)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from thinwire_common.traffic import Traffic
from thinwire_node.exchange.port import Outcome, Reason
from thinwire_node.training import pacing
from thinwire_node.training.work import Contribution

PHASES = ("compute", "encode", "upload", "receipt", "apply", "wait")
BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
OUTCOMES = tuple(reason.value for reason in Reason)
"""What becomes of a contribution: counted, or why not."""


class Durations:
    """How often something took how long: `counts[i]` times up to BOUNDS_S[i], and longer in the last place."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


@dataclass
class Record:
    counted: int = 0
    not_counted: int = 0
    not_counted_why: str = ""
    """Of the newest one."""
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    """By what was heard of contributions, those included that only said that there is nothing."""
    tokens: int = 0
    samples: int = 0
    """Trained, whatever became of them."""
    dropped: int = 0
    too_old: int = 0
    resyncs: int = 0
    mismatches: int = 0
    clock_jumps: int = 0
    sessions: int = 0
    sessions_lost: int = 0

    # of the newest contribution, or micro-batch
    loss: float | None = None
    components: int | None = None
    payload_bytes: int | None = None
    slack_s: float | None = None
    micro_batch: int | None = None

    traffic: Traffic = field(default_factory=Traffic)
    phases: dict[str, Durations] = field(default_factory=lambda: {phase: Durations() for phase in PHASES})
    tail: pacing.Tail = field(default_factory=pacing.Tail)
    speed: pacing.Speed = field(default_factory=pacing.Speed)

    def trained(self, samples: int, seconds: float, compute_s: float) -> None:
        """A micro-batch is done, after so many seconds, its wait for the compute thread included."""
        self.samples += samples
        self.micro_batch = samples
        self.speed.trained(samples, seconds)
        self.phases["compute"].add(compute_s)

    def encoded(self, contribution: Contribution, seconds: float) -> None:
        """A contribution is extracted and ready to leave."""
        self.loss = contribution.claim.loss
        self.components = contribution.components
        self.payload_bytes = len(contribution.payload)
        self.tail.encoded(seconds)
        self.phases["encode"].add(seconds)

    def heard(self, outcome: Outcome) -> None:
        self.outcomes[outcome.reason.value] += 1
