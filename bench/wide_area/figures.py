"""The measurements of a cell, and the figures derived from them. Pure.

T is the time of a round's computation, and X the time of an exchange of all gradients in float32. A system that
alternates between the two needs T + X for a round, and no system needs less than T. So the largest possible gain is 1 +
X/T. T is measured with the same loops on the same cores, all at once and without an exchange (the control), so that
scarce cores do not count against the network.

Four nodes on two cores would be four machines with half a core each, which nobody has. With dilated time (Gupta et al.,
To Infinity and Beyond: Time-Warped Network Emulation, NSDI 2006) a second of the emulated world lasts several seconds
of the machine's clock. Links are slower and longer by that factor, rounds have more samples, and each node is a machine
with more cores. Shares and ratios are the same on both clocks. Time is dilated too by what is kept from the nodes for
the coordinator and the line.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bench.wide_area.hosts import LinkSpec

GAIN_SHARE_WANTED = 0.9
COMPUTE_SHARE_WANTED = 0.9
X_OVER_T_WANTED = 10.0
WANTED_AT = (10.0, 100.0)
"""The link of the goal: rate in Mbit/s and round trip in ms."""


@dataclass(frozen=True)
class SystemFigures:
    """Totals of one system in a window, summed over its nodes unless stated otherwise."""

    nodes: int
    wall_s: float
    tokens: int
    exchanges: int
    """Sealed updates, or all-reduces."""
    contributions: int
    """Of single nodes to exchanges."""
    compute_s: float
    """Time of forward and backward passes."""
    sent_bytes: int
    received_bytes: int
    line_cpu_s: float
    """Processor time of the line emulated in Python, which was not available to the nodes."""

    @property
    def tokens_s(self) -> float:
        return self.tokens / self.wall_s

    @property
    def compute_share(self) -> float:
        """Share of the wall time spent on forward and backward passes."""
        return self.compute_s / (self.nodes * self.wall_s)

    @property
    def speed(self) -> float:
        """Tokens of one node in a second of its forward and backward passes."""
        return self.tokens / self.compute_s

    @property
    def tokens_each(self) -> float:
        """Tokens of one node in one exchange."""
        return self.tokens / self.contributions

    @property
    def line_cores(self) -> float:
        return self.line_cpu_s / self.wall_s

    def __add__(self, other: SystemFigures) -> SystemFigures:
        """Both windows together, of as many nodes each."""
        totals = {name: value + getattr(other, name) for name, value in asdict(self).items()}
        return SystemFigures(**totals | {"nodes": self.nodes})

    def bytes_each(self) -> tuple[float, float]:
        """Bytes that one node sends and receives in one exchange."""
        return self.sent_bytes / self.contributions, self.received_bytes / self.contributions


@dataclass(frozen=True)
class CellResult:
    """Results of one cell. control: computation alone; swarm: thinwire; ddp: DistributedDataParallel."""

    link: LinkSpec
    control: SystemFigures
    swarm: SystemFigures
    ddp: SystemFigures
    ddp_exchange_s: float
    """X."""
    cores: int
    """Cores of the machine that ran the cell."""
    dilation: float
    """Seconds of the machine's clock for one second of the emulated world. `link` uses the emulated clock, and all
    measured times the machine's clock."""
    nodes_share: float = 1.0
    """Share of the machine's cores that all nodes together may use."""

    @property
    def compute_round_s(self) -> float:
        """T, for the baseline's tokens per exchange."""
        return self.ddp.tokens_each * self.control.nodes / self.control.tokens_s

    @property
    def x_over_t(self) -> float:
        return self.ddp_exchange_s / self.compute_round_s

    @property
    def gain_max(self) -> float:
        return 1 + self.x_over_t

    @property
    def gain(self) -> float:
        return self.swarm.tokens_s / self.ddp.tokens_s

    @property
    def gain_share(self) -> float:
        """Share of the largest possible gain."""
        return self.gain / self.gain_max

    @property
    def swarm_compute_share(self) -> float:
        """Share of the available wall time spent on computation; the control defines what is available."""
        return self.swarm.compute_share / self.control.compute_share

    @property
    def decides(self) -> bool:
        """Whether this cell decides if the goal is reached."""
        here = (self.link.rate_mbit, self.link.round_trip_ms)
        return here == WANTED_AT and self.x_over_t >= X_OVER_T_WANTED

    @property
    def cores_each(self) -> float:
        """Cores of one node in the emulated world."""
        return round(self.dilation * self.nodes_share * self.cores / self.control.nodes, 3)

    @property
    def reached(self) -> bool:
        return self.gain_share >= GAIN_SHARE_WANTED and self.swarm_compute_share >= COMPUTE_SHARE_WANTED


@dataclass(frozen=True)
class SkippedCell:
    """A cell without figures, and the reason."""

    link: LinkSpec
    reason: str
