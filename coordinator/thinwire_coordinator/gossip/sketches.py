"""The sketches of one iteration, and the disagreement that they show. Pure.

The coordinator asks for the sketches of an iteration that no node has reached. It compares them once all members are
past it, so all of them are of the same iteration, and none is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

from thinwire_coordinator.gossip.participants import Participant
from thinwire_coordinator.ledger.gossip_consensus import NODES_MAX, Measurement, NodeSketch, measure
from thinwire_proto.gossip.consensus import MEASURE_EVERY

NODES_LEAST = 2


class Sketches:
    """steps: iterations of the run."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.measure_at = 0
        """The iteration that is asked for; 0 for none."""
        self._kept: dict[str, NodeSketch] = {}

    def ask(self, ahead: int) -> None:
        """Ask for an iteration, if none is asked for. ahead: nobody is past it before all have heard of it."""
        furthest = min(-(-ahead // MEASURE_EVERY) * MEASURE_EVERY, self._steps)
        self.measure_at = self.measure_at or furthest

    def put(self, node: str, iteration: int, sketch: bytes, step_norm: float) -> None:
        """Keep a node's sketch, if it was asked for."""
        if iteration and iteration == self.measure_at and (node in self._kept or len(self._kept) < NODES_MAX):
            self._kept[node] = NodeSketch(node, sketch, step_norm)

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
