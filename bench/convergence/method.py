"""The interface of all methods: a swarm in one process, a round, and its traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from thinwire_proto.contract import ScheduleSpec


@dataclass(frozen=True)
class SwarmSize:
    """Number of nodes, and samples of all nodes together in one local step. Each node has an equal share of the
    samples."""

    nodes: int
    samples: int

    @property
    def share(self) -> int:
        return self.samples // self.nodes


@dataclass(frozen=True)
class NodeTraffic:
    """Bytes that one node sent (up) and received (down)."""

    up: float
    down: float

    def __add__(self, other: NodeTraffic) -> NodeTraffic:
        return NodeTraffic(self.up + other.up, self.down + other.down)


class Method(Protocol):
    """A training method.

    `round` trains one round on the samples from position `first`. `step` counts local steps since the beginning. It
    returns the mean training loss in nats a token, and the traffic of one node.
    """

    def round(self, step: int, first: int) -> tuple[float, NodeTraffic]: ...


@runtime_checkable
class Growing(Protocol):
    """A method whose rounds can become larger."""

    def grow(self, schedule: ScheduleSpec, swarm: SwarmSize, times: int) -> None:
        """Take this schedule and these samples, so many times those of the first rounds, from the next round on."""


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
