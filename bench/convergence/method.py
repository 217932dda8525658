"""What all kinds of arms have in common: a swarm in one process, a round, and what passed in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Swarm:
    """samples: of all nodes together in one local step. Each node has an equal share of them."""

    nodes: int
    samples: int

    @property
    def share(self) -> int:
        return self.samples // self.nodes


@dataclass(frozen=True)
class Traffic:
    """Bytes that one node sent and was sent."""

    up: float
    down: float

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.up + other.up, self.down + other.down)


class Method(Protocol):
    """One round: from the samples at position `first` on to the next parameters. `step` counts local steps since the
    beginning. Returns the mean training loss in nats a token, and what passed."""

    def round(self, step: int, first: int) -> tuple[float, Traffic]: ...


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
