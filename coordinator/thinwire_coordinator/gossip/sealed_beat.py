"""The event of a sealed beat: what its reports say together."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire_coordinator.gossip.figures import GossipFigures
from thinwire_coordinator.gossip.unsealed import SealedReport
from thinwire_coordinator.hall.events import BeatSealed, NodeProgress
from thinwire_coordinator.hall.measurement import is_plausible, weighted_median
from thinwire_proto.contract import Contract
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.gossip.reports import SignedReport


def sealed_beat(
    beat: int, at: float, reports: Sequence[SealedReport], figures: GossipFigures, contract: Contract
) -> BeatSealed:
    """beat: the number of the row. at: on the coordinator's clock. figures: as of now."""
    samples = [entry.samples for entry in reports]
    signed = [entry.signed for entry in reports]
    total, rule = sum(samples), contract.rule
    assert isinstance(rule, OwnStepsSpec)
    return BeatSealed(
        beat=beat,
        at=at,
        counted=tuple(entry.counted for entry in reports),
        tokens_a_sample=contract.model.context,
        progress=progress_of(signed, samples),
        iterations=figures.iterations,
        iterations_done=total / rule.samples,
        members=figures.members,
        loss=loss_of(signed, samples),
        learning_rate=learning_rate(contract.schedule, min(figures.iterations[1], contract.schedule.steps - 1)),
    )


def loss_of(reports: Sequence[SignedReport], samples: Sequence[int]) -> float:
    """The median over nodes of the mean loss of each; not a number without any. All nodes weigh the same, because
    nobody can check how many samples a node has trained on."""
    return weighted_median((_mean(pairs), 1) for pairs in _by_node(reports, samples).values())


def progress_of(reports: Sequence[SignedReport], samples: Sequence[int]) -> dict[str, NodeProgress]:
    """By node, from its reports in a beat."""
    losses = {node: _mean(pairs) for node, pairs in _by_node(reports, samples).items()}
    newest: dict[str, int] = {}
    for signed in reports:
        newest[signed.node] = max(signed.report.iteration, newest.get(signed.node, 0))
    return {node: NodeProgress(iteration, losses.get(node)) for node, iteration in newest.items()}


_Pairs = list[tuple[float, int]]


def _by_node(reports: Sequence[SignedReport], samples: Sequence[int]) -> dict[str, _Pairs]:
    """The losses of each node that may be losses, each with its samples. A node without any is left out."""
    found: dict[str, _Pairs] = {}
    for signed, count in zip(reports, samples, strict=True):
        if count and is_plausible(signed.report.loss):
            found.setdefault(signed.node, []).append((signed.report.loss, count))
    return found


def _mean(pairs: _Pairs) -> float:
    return sum(loss * count for loss, count in pairs) / sum(count for _, count in pairs)
