"""The distribution of a node's compute time for a step, as it was measured.

Nothing is assumed about its shape: draws are taken from the measured times with replacement (the bootstrap). The mean
of the slowest of n nodes needs no draws, because the distribution function of a maximum is a product:

    E[max] = Σ_k x_k · (Π_i F_i(x_k) − Π_i F_i(x_(k−1))),  F_i(x) = the share of times ≤ x · speed_i
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from thinwire_proto.errors import ConfigError

Floats = NDArray[np.float64]
SPREAD_COUNT = 512
"""Times that stand for a distribution of which only mean and spread are known."""
VARIATION_MAX = 10.0
"""So many times have a coefficient of variation of at most the root of their number less one."""
SIGMA_MAX = 20.0
BISECTIONS = 60


@dataclass(frozen=True)
class ComputeTimes:
    """Measured seconds of a step of a node with speed 1, ascending."""

    samples_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples_s or min(self.samples_s) <= 0:
            raise ConfigError("compute: give at least one time of a step, each more than 0 s")
        object.__setattr__(self, "samples_s", tuple(sorted(self.samples_s)))

    @classmethod
    def around(cls, mean_s: float, variation: float) -> ComputeTimes:
        """Times with this mean and coefficient of variation, log-normal, because compute times lean to the right."""
        if mean_s <= 0 or variation < 0:
            raise ConfigError("compute: the mean must be more than 0 s, and the variation at least 0")
        if not variation:
            return cls((mean_s,))
        if variation > VARIATION_MAX:
            raise ConfigError(f"compute: the variation must be at most {VARIATION_MAX:g}")
        normal = np.asarray([NormalDist().inv_cdf((at + 0.5) / SPREAD_COUNT) for at in range(SPREAD_COUNT)])
        low, high = 0.0, SIGMA_MAX
        for _ in range(BISECTIONS):  # so few times of a wide distribution vary less than all of it
            sigma = (low + high) / 2
            raw = np.exp(sigma * normal)
            low, high = (sigma, high) if raw.std() < variation * raw.mean() else (low, sigma)
        return cls(tuple(float(value) for value in mean_s * raw / raw.mean()))

    @cached_property
    def mean_s(self) -> float:
        return float(np.mean(self.samples_s))

    @property
    def variation(self) -> float:
        """The coefficient of variation: standard deviation over mean."""
        return float(np.std(self.samples_s)) / self.mean_s

    def slowest_s(self, speeds: Sequence[float]) -> float:
        """The mean time of the slowest of independent nodes with these speeds."""
        times = np.asarray(self.samples_s)
        nodes = Counter(speeds)
        points = np.unique(np.concatenate([times / speed for speed in nodes]))
        reached = np.ones(len(points))
        for speed, count in nodes.items():
            # a time that was divided and multiplied may end a rounding below itself
            share = np.searchsorted(times, points * speed * (1 + 1e-12), side="right") / len(times)
            reached *= share**count
        return float(np.sum(points * np.diff(reached, prepend=0.0)))

    def draw(self, seed: int, iterations: int, speeds: Sequence[float]) -> Floats:
        """Seconds [iterations, nodes], drawn with replacement."""
        drawn = np.random.default_rng(seed).choice(np.asarray(self.samples_s), (iterations, len(speeds)))
        return np.asarray(drawn / np.asarray(speeds))
