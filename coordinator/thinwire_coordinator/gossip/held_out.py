"""The held-out loss of a gossip run, before its end. Pure, but for the queue of results.

There is no mean model before the end. So each node measures the parameters with which it begins an iteration, on its
own part of the samples. Two nodes have different parameters, so no answer can be checked by another one. The loss is
therefore the median over the parts, weighted by what counts in their samples, so that no node alone decides it, and
only nodes that have contributed are asked. Nothing is decided by this loss. It is not finite once that of half of the
weight is not, or is absurdly large.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from thinwire_coordinator.hall.measurement import (
    PART_SAMPLES,
    SAMPLES,
    Part,
    SetMeasured,
    is_plausible,
    weighted_median,
)
from thinwire_proto.task import HeldOutSet

SHARE = 32
"""At least so many times as long as it measures, a node trains."""
TRAINING = 3
"""Training on a sample takes about so many times as long as its loss alone."""


@dataclass
class _Progress:
    """The measurement of one set. parts: by node. weights: of the parts. losses: of those that were answered."""

    parts: dict[str, Part]
    weights: dict[Part, int]
    losses: dict[Part, float] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        return weighted_median((loss, self.weights[part]) for part, loss in self.losses.items())


class HeldOutLosses:
    """One measurement at a time.

    every: iterations between two measurements, at least; 0: there are none. trained: samples of a node in an iteration.
    iterations: tells those of the run, which an amendment may change. weight_of: the weight of a part beside those of
    the others of its set.
    """

    def __init__(
        self,
        sets: Sequence[HeldOutSet],
        every: int,
        trained: int,
        iterations: Callable[[], int],
        weight_of: Callable[[Part], int],
    ) -> None:
        self._weight_of = weight_of
        self._spreads = _spreads(sets)
        self._every = every
        self._trained = trained
        self._iterations = iterations
        self._begun = 0  # the iteration of the newest measurement
        self._current: dict[str, _Progress] = {}  # by set
        self.results: asyncio.Queue[SetMeasured] = asyncio.Queue()
        """Its length is at most the number of sets, because the next measurement waits."""

    def amend(self, sets: Sequence[HeldOutSet]) -> bool:
        """The run has other sets from its next measurement on, or another number of iterations. Returns whether the
        measurement that is under way is given up, because no node comes to its iteration."""
        self._spreads = _spreads(sets)
        return self.iteration >= self._iterations() and self.give_up()

    @property
    def iteration(self) -> int:
        """Of the measurement that is under way; 0 without one."""
        return self._begun if self._current else 0

    def begin(self, iteration: int, nodes: Sequence[str]) -> bool:
        """Share out the measurement of an iteration that no node has reached, if one is due.

        Returns whether the one before was not complete, and is given up."""
        if not nodes or not self._is_due(iteration, len(nodes)) or not self.results.empty():
            return False
        is_given_up = self.give_up()
        self._begun, ordered = iteration, sorted(nodes)
        for number, (name, spread) in enumerate(self._spreads.items()):
            pieces = _pieces(spread, len(ordered))
            bounds = [spread * piece // pieces for piece in range(pieces + 1)]
            parts = {}
            for piece in range(pieces):
                node = ordered[(iteration + number * pieces + piece) % len(ordered)]  # another one each time
                start, end = bounds[piece : piece + 2]
                parts[node] = Part(iteration, name, spread, start, end - start)
            self._current[name] = _Progress(parts, {part: self._weight_of(part) for part in parts.values()})
        return is_given_up

    def _is_due(self, iteration: int, nodes: int) -> bool:
        if not self._every or not self._spreads or not self._begun < iteration < self._iterations():
            return False  # the coordinator measures the mean, at the end
        most = sum(-(-spread // _pieces(spread, nodes)) for spread in self._spreads.values())
        least = math.ceil(SHARE * most / (TRAINING * self._trained))
        return iteration - self._begun >= max(self._every, least)

    def give_up(self) -> bool:
        """Drop the measurement that is under way. Returns whether there was one."""
        was_open, self._current = bool(self._current), {}
        return was_open

    def open_to(self, node: str) -> list[Part]:
        given = [(progress, progress.parts.get(node)) for progress in self._current.values()]
        return [part for progress, part in given if part is not None and part not in progress.losses]

    def left(self, node: str) -> bool:
        """A node went. Returns whether the measurement is given up, because a part of it was the node's."""
        return bool(self.open_to(node)) and self.give_up()

    def answered(self, node: str, part: Part, loss: float) -> str:
        """A node reports the loss of a part. Returns why it is refused, in words, or nothing."""
        if part not in self.open_to(node):
            return "this part is not wanted of this node, or not any longer"
        progress = self._current[part.name]
        progress.losses[part] = loss if is_plausible(loss) else math.inf
        if len(progress.losses) == len(progress.parts):
            del self._current[part.name]
            self.results.put_nowait(SetMeasured(part.step, part.name, progress.loss, "nodes"))
        return ""


def _spreads(sets: Sequence[HeldOutSet]) -> dict[str, int]:
    """Samples of each set to measure; a set may be empty."""
    return {found.name: min(SAMPLES, found.samples) for found in sets if found.samples}


def _pieces(spread: int, nodes: int) -> int:
    """The number of parts that so many samples of a set are shared out in."""
    return min(nodes, -(-spread // PART_SAMPLES))
