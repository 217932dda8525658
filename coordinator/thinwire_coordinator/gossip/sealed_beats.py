"""The progress and losses in the reports of a beat, for its sealing and for the page that reads it again."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from thinwire_coordinator.gossip.figures import GossipFigures
from thinwire_coordinator.gossip.ledger_rows import BEAT, KIND
from thinwire_coordinator.gossip.store import SealedReport
from thinwire_coordinator.hall.events import BeatSealed, NodeProgress
from thinwire_coordinator.hall.ledger.bodies import Bodies
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.hall.measurement import is_plausible, weighted_median
from thinwire_coordinator.hall.series import Bucket, add_loss
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec
from thinwire_proto.errors import LedgerError, PayloadError
from thinwire_proto.exact.amendments import contract_at
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.gossip.reports import SignedReport, decode_reports


def sealed_beat(
    beat: int, at: float, reports: Sequence[SealedReport], figures: GossipFigures, state: RunState
) -> BeatSealed:
    """beat: the number of the row. at: on the coordinator's clock. figures: as of now."""
    samples = [entry.samples for entry in reports]
    signed = [entry.signed for entry in reports]
    contract, total = state.contract, sum(samples)
    rule = contract.rule
    newest = min(figures.iterations[1], contract.schedule.steps - 1)
    assert isinstance(rule, OwnStepsSpec)
    return BeatSealed(
        beat=beat,
        at=at,
        counted=tuple(entry.counted for entry in reports),
        tokens_a_sample=state.tokens_a_sample,
        progress=progress_of(signed, samples),
        iterations=figures.iterations,
        iterations_done=total / rule.samples,
        members=figures.members,
        loss=loss_of(signed, samples),
        learning_rate=learning_rate(contract_at(contract, newest).schedule, newest),
    )


def loss_of(reports: Sequence[SignedReport], samples: Sequence[int]) -> float:
    """The median over nodes of the mean loss of each; not a number without any. All nodes weigh the same, because
    nobody can check how many samples a node has trained on."""
    return weighted_median((_mean(pairs), 1) for pairs in _by_node(reports, samples).values())


def progress_of(reports: Sequence[SignedReport], samples: Sequence[int]) -> dict[str, NodeProgress]:
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


class PastBeats:
    """Reads the beats of earlier terms, for the page.

    Makes a bucket for each row, in their order. Its step is the median of the nodes' newest iterations. A row whose
    body is not kept has no losses, and the step of the row before."""

    def __init__(self, ledger: Ledger, bodies: Bodies) -> None:
        self._ledger = ledger
        self._bodies = bodies
        self._iterations: dict[str, int] = {}
        self._step = 0

    def read(self, number: int, body_bytes: int, tokens: int, counted: list[tuple[str, int]]) -> Bucket:
        """counted: nodes with their samples. Raises LedgerError."""
        row, bucket = self._ledger.row(number), Bucket(self._step, tokens=tokens, nodes=len({*dict(counted)}))
        if row.extras.get(KIND) != BEAT:
            return bucket
        try:
            reports = decode_reports(self._bodies.get(row.body_hash, row.body_bytes))
        except (LedgerError, OSError, PayloadError):
            return bucket
        samples = [count for _, count in counted]
        if len(samples) != len(reports):
            return bucket
        progress = progress_of(reports, samples)
        self._iterations |= {node: one.iteration for node, one in progress.items()}
        self._step = bucket.step = max(self._step, statistics.median_low(self._iterations.values()))
        add_loss(bucket, loss_of(reports, samples), [one.loss for one in progress.values() if one.loss is not None])
        return bucket
