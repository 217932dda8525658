"""The sketches of one iteration, and the disagreement that they show. Pure.

The coordinator asks for the sketches of an iteration that no node has reached. It compares them once all members are
past it, so all of them are of the same iteration, and none is waited for.

At the end, the parameters of a node must fit the last sketch that it has signed: since then it has stepped, and mixed
with nodes that are about as far away as before. How far nodes step, and are apart, is the median of what all say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median_low

import numpy as np
from torch import Tensor

from thinwire_coordinator.gossip.measurements import NODES_MAX, Measurement, NodeSketch, measure
from thinwire_coordinator.gossip.participants import Participant
from thinwire_proto.gossip.consensus import MEASURE_EVERY, sketch_of, unpack_sketch

NODES_LEAST = 2
FIT_FACTOR = 4.0
"""Times what is expected that a node has moved by since its last sketch."""


class Sketches:
    """steps: tells the iterations of the run, which an amendment may change."""

    def __init__(self, steps: Callable[[], int]) -> None:
        self._steps = steps
        self.measure_at = 0
        """The iteration that is asked for; 0 for none."""
        self._kept: dict[str, NodeSketch] = {}
        self._newest: dict[str, tuple[int, NodeSketch]] = {}  # by node, with its iteration; not kept over a restart

    def ask(self, ahead: int) -> None:
        """Ask for an iteration, if none is asked for. ahead: nobody is past it before all have heard of it."""
        furthest = min(-(-ahead // MEASURE_EVERY) * MEASURE_EVERY, self._steps())
        self.measure_at = self.measure_at or furthest

    def amend(self) -> None:
        """The run has another number of iterations, of which no node has done the last one."""
        self.measure_at = min(self.measure_at, self._steps())

    def put(self, node: str, iteration: int, sketch: bytes, step_norm: float) -> None:
        """Keep a node's sketch, if it was asked for."""
        if iteration and iteration == self.measure_at and (node in self._kept or len(self._kept) < NODES_MAX):
            self._kept[node] = NodeSketch(node, sketch, step_norm)
            self._newest.pop(node, None)
            self._newest[node] = iteration, self._kept[node]
            if len(self._newest) > NODES_MAX:
                del self._newest[next(iter(self._newest))]

    def drop(self, node: str) -> None:
        self._kept.pop(node, None)

    def measured(self, running: Sequence[Participant]) -> Measurement | None:
        """The measurement that is due, once; None if members have not come there yet, or sent no sketches.

        A member that has yet to begin is not waited for, and neither is one that did not hear in time."""
        waited = [one for one in running if one.enters_at is None]
        if not self.measure_at or not waited or any(one.iteration < self.measure_at for one in waited):
            return None
        iteration, self.measure_at = self.measure_at, 0
        kept, self._kept = [self._kept[node] for node in sorted(self._kept)], {}
        return measure(iteration, kept) if len(kept) >= NODES_LEAST else None

    def misfit(self, node: str, x: Tensor, rate: Callable[[int], float]) -> str:
        """Why the parameters of a node after the last iteration do not fit its last sketch; nothing if they do, or
        if there are too few sketches to tell. rate: the learning rate of an iteration."""
        if node not in self._newest:
            return ""
        iteration, own = self._newest[node]
        alike = [one for at, one in self._newest.values() if at == iteration]
        if len(alike) < NODES_LEAST:
            return ""
        sketches = np.stack([unpack_sketch(one.sketch) for one in alike])
        apart = median_low(np.linalg.norm(sketches - np.median(sketches, axis=0), axis=1).tolist())
        before = rate(max(0, iteration - 1))  # of the steps that the sketches came with
        grows = (
            max((rate(later) for later in range(iteration, self._steps())), default=before) / before if before else 1
        )
        steps = (self._steps() - iteration) * max(1.0, grows) * median_low([one.step_norm for one in alike])
        moved = float(np.linalg.norm(sketch_of(x, iteration) - unpack_sketch(own.sketch)))
        if moved <= FIT_FACTOR * (apart + steps):
            return ""
        return (
            f"they have moved by {moved:.3g} since the node's sketch of iteration {iteration}; with the steps of all "
            f"since, and as far as nodes are apart, {apart + steps:.3g} is expected, and {FIT_FACTOR:g} times as much "
            "is allowed"
        )
