"""The lines of a study's table: an arm with a number of nodes, over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from bench.convergence.dense import BYTES_EACH_WAY
from bench.convergence.plan import Study, sweep_of
from bench.convergence.run import Result


@dataclass(frozen=True)
class Line:
    """An arm with so many nodes, run to its end on one seed or more."""

    arm: str
    nodes: int
    results: tuple[Result, ...]

    @property
    def loss(self) -> float:
        return mean(result.loss for result in self.results)

    @property
    def spread(self) -> float:
        """Between the highest and the lowest of the seeds."""
        losses = [result.loss for result in self.results]
        return max(losses) - min(losses)

    @property
    def bytes(self) -> float:
        """That one node sent and was sent."""
        return mean(result.bytes for result in self.results)

    @property
    def dense_bytes(self) -> float:
        """What a ring all-reduce of float32 in every local step would have taken."""
        run, size = self.results[0].run, self.results[0].parameters
        steps = run.tokens // (run.size.samples * run.size.spec.context)
        return 2 * BYTES_EACH_WAY * size * steps


def lines_of(study: Study, results: Sequence[Result]) -> list[Line]:
    """Runs to the end, the best rate of each arm; by arm and number of nodes, as the arms are listed."""
    lines = []
    for arm in study.arms:
        best = sweep_of(study, arm, results).best
        final = [r for r in results if r.run.arm == arm and r.run.rate == best and r.run.tokens == study.tokens]
        for nodes in sorted({result.run.nodes for result in final}):
            lines.append(Line(arm, nodes, tuple(result for result in final if result.run.nodes == nodes)))
    return lines
