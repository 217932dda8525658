"""What is measured in a cell, and what follows from it. Pure.

With T the time that the computing of a round takes and X that of an exchange of all gradients in float32, whoever
computes and exchanges in turn needs T + X for a round, and nobody needs less than T: the most that can be gained is
1 + X/T. T is what the same loops need side by side on the same cores without exchanging anything (the control), so
that cores which are short do not count as a fault of the network.

Four nodes on two cores are four machines of half a core, which nobody has. Where time is dilated (Gupta et al., To
Infinity and Beyond: Time-Warped Network Emulation, NSDI 2006) a second of the emulated world lasts several: links are
as much slower and longer by the machine's clock, rounds hold as many more samples, and every node is a machine with as
many more cores. Shares and ratios are the same by either clock.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bench.wide_area.hosts import Link

GAIN_SHARE_WANTED = 0.9
COMPUTE_SHARE_WANTED = 0.9
X_OVER_T_WANTED = 10.0
DERIVED = (
    *("cores_each", "compute_round_s", "x_over_t", "gain_most", "gain", "gain_share"),
    *("swarm_compute_share", "dense_compute_share"),
)
WANTED_AT = (10.0, 100.0)
"""Mbit/s and ms round trip."""


@dataclass(frozen=True)
class Measured:
    """A window of one system; sums over its nodes, unless said otherwise."""

    nodes: int
    wall_s: float
    tokens: int
    exchanges: int
    """Updates sealed, or all-reduces done."""
    contributions: int
    """Of a node to an exchange."""
    compute_s: float
    """Spent on forward and backward."""
    sent_bytes: int
    received_bytes: int
    line_cpu_s: float
    """Processor time of the line in Python, which the nodes did not get."""

    @property
    def tokens_s(self) -> float:
        return self.tokens / self.wall_s

    @property
    def compute_share(self) -> float:
        """Of the wall time, spent on forward and backward."""
        return self.compute_s / (self.nodes * self.wall_s)

    @property
    def tokens_each(self) -> float:
        """Tokens a node and exchange."""
        return self.tokens / self.contributions

    @property
    def line_cores(self) -> float:
        return self.line_cpu_s / self.wall_s

    def bytes_each(self) -> tuple[float, float]:
        """Sent and received, a node and exchange."""
        return self.sent_bytes / self.contributions, self.received_bytes / self.contributions


@dataclass(frozen=True)
class Outcome:
    """One cell. control: computing alone; swarm: ours; dense: DistributedDataParallel."""

    link: Link
    control: Measured
    swarm: Measured
    dense: Measured
    dense_exchange_s: float
    """X."""
    cores: int
    """Of the machine that all of it ran on."""
    dilation: float
    """Seconds of the machine's clock for one of the emulated world, which `link` is of; all that was measured is by the
    machine's clock."""

    @property
    def compute_round_s(self) -> float:
        """T, at the baseline's tokens per exchange."""
        return self.dense.tokens_each * self.control.nodes / self.control.tokens_s

    @property
    def x_over_t(self) -> float:
        return self.dense_exchange_s / self.compute_round_s

    @property
    def gain_most(self) -> float:
        return 1 + self.x_over_t

    @property
    def gain(self) -> float:
        return self.swarm.tokens_s / self.dense.tokens_s

    @property
    def gain_share(self) -> float:
        """Of the most that anybody can gain."""
        return self.gain / self.gain_most

    @property
    def swarm_compute_share(self) -> float:
        """Of the wall time that the cores leave: what the control reaches is all there is."""
        return self.swarm.compute_share / self.control.compute_share

    @property
    def dense_compute_share(self) -> float:
        return self.dense.compute_share / self.control.compute_share

    @property
    def decides(self) -> bool:
        """Whether what is to be reached is to be reached here."""
        here = (self.link.rate_mbit, self.link.round_trip_ms)
        return here == WANTED_AT and self.x_over_t >= X_OVER_T_WANTED

    @property
    def cores_each(self) -> float:
        """What computes for one node in the emulated world."""
        return self.dilation * self.cores / self.control.nodes

    @property
    def reached(self) -> bool:
        return self.gain_share >= GAIN_SHARE_WANTED and self.swarm_compute_share >= COMPUTE_SHARE_WANTED

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"derived": {name: getattr(self, name) for name in DERIVED}}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Outcome:
        parts: dict[str, Any] = {name: document[name] for name in ("dense_exchange_s", "cores", "dilation")}
        parts |= {name: Measured(**document[name]) for name in ("control", "swarm", "dense")}
        return cls(Link(**document["link"]), **parts)


@dataclass(frozen=True)
class LeftOut:
    """A cell without figures, and why."""

    link: Link
    reason: str
