"""The rows of a study's table: an arm with a number of nodes, over its seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from bench.convergence.plan import Study, best_rate
from bench.convergence.run import Result
from thinwire_proto.all_reduce import ring_bytes


@dataclass(frozen=True)
class ArmSummary:
    """The full-length runs of an arm with a number of nodes, on one or more seeds."""

    arm: str
    nodes: int
    results: tuple[Result, ...]

    @property
    def loss(self) -> float:
        return mean(result.loss for result in self.results)

    @property
    def spread(self) -> float:
        """Difference between the highest and the lowest loss of the seeds."""
        losses = [result.loss for result in self.results]
        return max(losses) - min(losses)

    @property
    def single_node_loss(self) -> float | None:
        """The loss of one node's own parameters; None where all nodes have the same."""
        losses = [result.single_node_loss for result in self.results if result.single_node_loss is not None]
        return mean(losses) if losses else None

    def relative_loss(self, other: ArmSummary) -> float | None:
        """How far the mean loss is above another arm's, on the seeds that both have; None if there are none."""
        ours, theirs = ({result.run.seed: result.loss for result in arm.results} for arm in (self, other))
        seeds = ours.keys() & theirs.keys()
        return mean(ours[seed] for seed in seeds) / mean(theirs[seed] for seed in seeds) - 1 if seeds else None

    @property
    def bytes(self) -> float:
        """Bytes that one node sent and received."""
        return mean(result.bytes for result in self.results)

    @property
    def bytes_a_parameter(self) -> float:
        """Bytes that one node sent and received, a parameter and local step."""
        run = self.results[0].run
        steps = run.tokens / (run.size.samples * run.size.spec.context)
        return self.bytes / (self.results[0].parameters * steps)

    @property
    def times_fewer(self) -> float:
        """Times fewer bytes than a ring all-reduce of float32 among the same nodes in every local step; 0 for one
        node, whose all-reduce sends nothing."""
        return ring_bytes(self.nodes) / self.bytes_a_parameter


def four_decimals(loss: float | None) -> str:
    """A loss for a table; empty if it is not known."""
    return "" if loss is None else f"{loss:.4f}"


def percent(share: float | None) -> str:
    """A relative loss for a table; empty if it is not known."""
    return "" if share is None else f"{share:+.2%}"


def summaries_of(study: Study, results: Sequence[Result]) -> list[ArmSummary]:
    """The full-length runs at the best rate of each arm, by arm and number of nodes, in the order of the arms."""
    summaries = []
    for arm in study.arms:
        best = best_rate(study, arm, results)
        final = [r for r in results if r.run.arm == arm and r.run.rate == best and r.run.tokens == study.tokens]
        for nodes in sorted({result.run.nodes for result in final}):
            summaries.append(ArmSummary(arm, nodes, tuple(result for result in final if result.run.nodes == nodes)))
    return summaries


def front_of(summaries: Sequence[ArmSummary], baseline: ArmSummary) -> list[ArmSummary]:
    """The arms that lose less, relative to the baseline, than every arm with as few bytes or fewer; fewest bytes first.

    summaries: with one number of nodes. Those without a seed in common with the baseline are left out."""
    found: list[ArmSummary] = []
    least = math.inf
    for one in sorted(summaries, key=lambda one: (one.bytes, one.loss)):
        loss = one.relative_loss(baseline)
        if loss is not None and loss < least:
            found.append(one)
            least = loss
    return found
