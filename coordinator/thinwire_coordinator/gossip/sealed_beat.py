"""The event of a sealed beat: what its reports say together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from thinwire_coordinator.gossip.unsealed import SealedReport
from thinwire_coordinator.swarm.events import BeatSealed, NodeProgress
from thinwire_coordinator.swarm.gossip_figures import GossipFigures
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
        loss=mean_loss(signed, samples),
        learning_rate=learning_rate(contract.schedule, min(figures.iterations[1], contract.schedule.steps - 1)),
        every=figures.every,
    )


def mean_loss(reports: Sequence[SignedReport], samples: Sequence[int]) -> float:
    """The mean loss over samples; not a number without any."""
    pairs = [(one.report.loss, count) for one, count in zip(reports, samples, strict=True) if count]
    return sum(loss * count for loss, count in pairs) / sum(count for _, count in pairs) if pairs else math.nan


def progress_of(reports: Sequence[SignedReport], samples: Sequence[int]) -> dict[str, NodeProgress]:
    """By node, from its reports in a beat."""
    own: dict[str, list[tuple[SignedReport, int]]] = {}
    for signed, count in zip(reports, samples, strict=True):
        own.setdefault(signed.node, []).append((signed, count))
    found = {}
    for node, pairs in own.items():
        loss = mean_loss([signed for signed, _ in pairs], [count for _, count in pairs])
        newest = max(signed.report.iteration for signed, _ in pairs)
        found[node] = NodeProgress(newest, None if math.isnan(loss) else loss)
    return found
