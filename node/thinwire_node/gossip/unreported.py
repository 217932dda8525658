"""The work of a node of a gossip run that the coordinator has not heard of."""

from __future__ import annotations

from dataclasses import dataclass, field

from thinwire_node.gossip.work import Finished, Sketched
from thinwire_proto.gossip.reports import Report


@dataclass
class Unreported:
    """The work since the newest report that the coordinator has answered.

    compute_s: with the rests of the machine, because the coordinator predicts by it how long an iteration takes.
    missed: peers for which the node has waited in vain, or whose messages it could not read."""

    samples: int = 0
    loss_sum: float = 0.0
    compute_s: float = 0.0
    missed: set[int] = field(default_factory=set)
    sketched: Sketched | None = None

    @property
    def counted(self) -> tuple[int, float]:
        """Samples, and the sum of their losses."""
        return self.samples, self.loss_sum

    def took(self, finished: Finished, share: float) -> None:
        """An iteration is finished. share: of the time, in which the machine computes."""
        gradient = finished.gradient
        self.samples += gradient.samples
        self.loss_sum += gradient.loss * gradient.samples
        self.compute_s += gradient.compute_s / share
        self.missed.update(finished.missing)
        self.sketched = finished.sketched or self.sketched

    def reported(self, report: Report) -> None:
        """The coordinator has answered a report."""
        self.loss_sum -= report.loss * report.samples
        self.samples -= report.samples
        self.compute_s = max(0.0, self.compute_s - report.compute_ms / 1000)
        self.missed -= set(report.missed)
        if self.sketched is not None and self.sketched.iteration <= report.sketch_iteration:
            self.sketched = None
