"""The newest sketch of each node, and the disagreement that they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thinwire_proto.gossip.consensus import disagreement

NODES_MAX = 1024
"""Nodes whose sketches are compared; with more, these are a sample."""


@dataclass(frozen=True)
class _Kept:
    sketch: bytes
    scale: float
    step_norm: float


class Sketches:
    """seed: of all sketches of this process, so that they can be compared; not 0."""

    def __init__(self, seed: int) -> None:
        self.seed = seed or 1
        self._kept: dict[str, _Kept] = {}

    def put(self, node: str, sketch: bytes, scale: float, step_norm: float) -> None:
        self._kept.pop(node, None)
        if len(self._kept) >= NODES_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[node] = _Kept(sketch, scale, step_norm)

    def drop(self, node: str) -> None:
        self._kept.pop(node, None)

    def measure(self, nodes: Sequence[str]) -> tuple[float | None, float, float | None]:
        """Distance from the mean, its relative error, and the distance over the mean step; None while unknown."""
        kept = [self._kept[node] for node in nodes if node in self._kept]
        if len(kept) < 2:
            return None, 0.0, None
        found = disagreement([np.frombuffer(one.sketch, np.int8).astype(np.float64) * one.scale for one in kept])
        step = sum(one.step_norm for one in kept) / len(kept)
        return found.distance, found.error, found.in_steps(step) if step > 0 else None
