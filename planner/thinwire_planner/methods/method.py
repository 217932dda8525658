"""The interface of a method: it makes variants for a setting, and each variant predicts the time of a step.

A method is a function from a setting to its variants, which registers itself with `METHODS`. Everything is computed for
the same work: in each step, the nodes compute as many gradients as there are nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from thinwire_planner.timing.compute import ComputeTimes
from thinwire_planner.timing.network import Network
from thinwire_proto.errors import ConfigError
from thinwire_proto.kinds import Kinds

ITERATIONS_MAX = 400
"""Iterations that a prediction goes through at most."""
FLOAT32_BYTES = 4
DRAWS = 200
"""Sums of H times of each node, of which the mean of the largest is taken."""
DRAWS_MIN = 8
NUMBERS_MAX = 400_000


def by_nodes(table: Mapping[int, float], nodes: int) -> float:
    """The value of a table by the number of nodes; between its numbers, on a logarithmic scale."""
    return float(np.interp(math.log(nodes), np.log(list(table)), list(table.values())))


@dataclass(frozen=True)
class Rates:
    """Parameters a second of a node's and the coordinator's own arithmetic.

    The defaults are those of one thread. compress: a whole contribution, of which the extraction (64 to 68 ms for a
    matrix of 2048 × 4096, docs/performance.md) is half. apply: a whole update, which takes five ninths of a
    contribution (docs/log/wide-area.md).
    """

    compress: float = 65e6
    apply: float = 118e6
    merge: float = 8.5e9
    """Of one node's votes: 200 million components a second, 96 of 4,096 in a tile."""
    step: float = 26e9
    """Operations in float64, in the exact step of Muon that every replica takes: two cores."""


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything that a prediction needs.

    speeds: of each node, 1 for the one whose times were measured. coordinator_*: rates of the coordinator's line.
    passes: micro-batches of a step, of which all-reduce overlaps the last. step_operations: of the exact step of Muon
    that a replica takes; 0: not known. iterations_max: of a simulation of gossip.
    """

    parameters: int
    compute: ComputeTimes
    network: Network
    speeds: tuple[float, ...]
    coordinator_up_bits_s: float
    coordinator_down_bits_s: float
    passes: int = 1
    step_operations: float = 0.0
    rates: Rates = field(default_factory=Rates)
    seed: int = 1
    iterations_max: int = ITERATIONS_MAX

    def __post_init__(self) -> None:
        if self.parameters < 1:
            raise ConfigError("the model must have at least one parameter")
        if len(self.speeds) != self.network.nodes or min(self.speeds) <= 0:
            raise ConfigError(f"give each of the {self.network.nodes} nodes a speed of more than 0")
        if min(self.coordinator_up_bits_s, self.coordinator_down_bits_s) <= 0:
            raise ConfigError("the coordinator's line needs rates of more than 0")

    @property
    def nodes(self) -> int:
        return self.network.nodes

    @property
    def slowest_s(self) -> float:
        """E[max C]."""
        return self.compute.slowest_s(self.speeds)

    @property
    def mean_s(self) -> float:
        """E[C], over all nodes."""
        return self.compute.mean_s * sum(1 / speed for speed in self.speeds) / self.nodes

    @property
    def together_s(self) -> float:
        """n/Σ 1/E[C]: seconds in which all nodes together compute n gradients, if none waits for another."""
        return self.compute.mean_s * self.nodes / sum(self.speeds)

    def waiting_s(self, steps: int) -> float:
        """E[max Σ_H C] / H, H = steps."""
        if steps == 1:
            return self.slowest_s
        draws = max(DRAWS_MIN, min(DRAWS, NUMBERS_MAX // (steps * self.nodes)))
        times = self.compute.draw(self.seed, draws * steps, self.speeds)
        sums = times.reshape(draws, steps, self.nodes).sum(axis=1)
        expected = steps * self.compute.mean_s / np.asarray(self.speeds)
        sums += expected - sums.mean(axis=0)  # so that chance does not end below a node's own mean
        return min(float(sums.max(axis=1).mean()) / steps, self.slowest_s)

    @property
    def affordable_bytes(self) -> float:
        """Bytes a parameter that the slowest line carries one way while a step is computed."""
        bits_s = min(self.network.up_bits_s.min(), self.network.down_bits_s.min())
        return float(bits_s) / self.network.per_host * self.mean_s / 8 / self.parameters

    def by_nodes(self, table: Mapping[int, float]) -> float:
        return by_nodes(table, self.nodes)

    def with_network(self, network: Network) -> Setting:
        """The same setting with other lines, and with as many nodes as they have."""
        at = [number * self.nodes // network.nodes for number in range(network.nodes)]
        return replace(self, network=network, speeds=tuple(self.speeds[number] for number in at))


@dataclass(frozen=True)
class Forecast:
    """The predicted time of a step. bytes_a_parameter: sent and received by a node in a step. parts: what the time is
    made of, in seconds of a step; where computing and exchange overlap, they do not add up to it. tokens: so many times
    the tokens of Muon with every gradient exchanged does it need for the same loss (docs/convergence)."""

    seconds: float
    bytes_a_parameter: float
    parts: tuple[tuple[str, float], ...]
    tokens: float = 1.0


@dataclass(frozen=True)
class Variant:
    """One way to run a method.

    name: unique. family: what the choice is between. is_overlapped: computing goes on while the exchange does. slack:
    iterations that a message may be late. looseness: how far it is from averaging fresh gradients of all nodes exactly;
    of two that are equally fast, the smaller is taken. caution: why it is not recommended, or empty. without_overlap:
    the name of the same variant that computes and exchanges in turn. is_simulated: a forecast goes through iterations,
    which takes time.
    """

    name: str
    family: str
    forecast: Callable[[Setting], Forecast]
    is_overlapped: bool
    looseness: float = 0.0
    without_overlap: str = ""
    caution: str = ""
    slack: int = 0
    is_simulated: bool = False


Variants = Callable[[Setting], Iterator[Variant]]
METHODS: Kinds[Variants] = Kinds("method", "thinwire_planner.methods")


def all_variants(setting: Setting) -> Sequence[Variant]:
    return [variant for name in sorted(METHODS.names()) for variant in METHODS[name](setting)]
