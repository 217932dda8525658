"""Figures of a gossip run, for status, page and metrics."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client.metrics_core import Metric

from thinwire_common.metrics import Definitions
from thinwire_coordinator.gossip.directory import Directory, Phase
from thinwire_coordinator.gossip.ledger_rows import BEAT, KIND
from thinwire_coordinator.gossip.participants import Participant
from thinwire_coordinator.gossip.store import SealedReport
from thinwire_coordinator.hall.counts import NodeCounts
from thinwire_coordinator.hall.events import BeatSealed, NodeProgress
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.ledger.bodies import Bodies
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.hall.measurement import is_plausible, weighted_median
from thinwire_coordinator.hall.observe.metrics import family, one
from thinwire_coordinator.hall.series import Bucket, add_loss
from thinwire_coordinator.hall.view import Plain, RunView, Stage, counted, waiting_for
from thinwire_coordinator.hall.web.status import shortened
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec
from thinwire_proto.errors import LedgerError, PayloadError
from thinwire_proto.exact.amendments import contract_at
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.gossip.reports import Line, SignedReport, decode_reports

GossipStage = Literal["waiting", "training", "deposit", "complete"]
STAGES: dict[Phase, GossipStage] = {
    Phase.TRAINING: "training",
    Phase.COLLECTING: "deposit",
    Phase.COMPLETE: "complete",
}


@dataclass(frozen=True)
class SeenPeer:
    """An edge of a node, as it reports it. node: the peer's id. iteration: of the peer's newest message."""

    node: str
    line: Line
    iteration: int | None


class GossipFigures:
    """What the directory says now, and what was measured and sealed last. codec: of messages. beats: rows that are
    sealed, over all terms.

    disagreement: root mean square distance of the members from their mean; error: relative, of the estimate; in_steps:
    the distance over the size of a step; measured_at: the iteration of that measurement, 0 before the first. None while
    unknown. edges: by node, as it last reported them. deposited: nodes whose parameters have come.
    """

    def __init__(self, directory: Directory, codec: str, beats: int) -> None:
        self._directory = directory
        self.codec = codec
        self.beats = beats
        self.disagreement: float | None = None
        self.error = 0.0
        self.in_steps: float | None = None
        self.measured_at = 0
        self.loss: float | None = None
        self.edges: dict[str, tuple[SeenPeer, ...]] = {}
        self.deposited: set[str] = set()

    @property
    def stage(self) -> GossipStage:
        directory = self._directory
        has_begun = directory.topology is not None or directory.phase is not Phase.TRAINING
        return STAGES[directory.phase] if has_begun else "waiting"

    @property
    def missing(self) -> int:
        """Nodes that the first topology waits for."""
        return self._directory.missing if self.stage == "waiting" else 0

    @property
    def topology(self) -> int:
        return self._directory.number

    @property
    def members(self) -> int:
        """Nodes in the newest topology."""
        topology = self._directory.topology
        return len(topology.plan.members) if topology is not None else 0

    @property
    def present(self) -> int:
        """Members that report."""
        return len(self._directory.running)

    @property
    def iterations(self) -> tuple[int, int, int]:
        """Least, median and most of the members that report; of all members if none does."""
        done = [one.iteration for one in self._directory.running or self._all_members()] or [0]
        return min(done), int(statistics.median_low(done)), max(done)

    def _all_members(self) -> list[Participant]:
        return [one for one in self._directory.by_node.values() if self._directory.runs(one)]


METRICS = Definitions("thinwire_coordinator_")

ITERATIONS = METRICS.gauge(
    "iterations",
    'Iterations that the nodes of a gossip run (exchange.kind = "gossip") have done. of: least, median and '
    "most among those that take part.",
    "of",
)
TOPOLOGY = METRICS.gauge("topology", "Number of the newest topology of a gossip run; 0 before the first.")
DISAGREEMENT_IN_STEPS = METRICS.gauge(
    "disagreement_in_steps",
    "Root mean square distance of the nodes from their mean, over the root mean square of their steps in that "
    "iteration. Training needs it to be small.",
)


def collect(figures: GossipFigures) -> Iterable[Metric]:
    yield family(ITERATIONS, dict(zip(("least", "median", "most"), figures.iterations, strict=True)))
    yield one(TOPOLOGY, figures.topology)
    if figures.in_steps is not None:
        yield one(DISAGREEMENT_IN_STEPS, figures.in_steps)


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


EDGES_MAX = 8
"""Edges of a node in the table."""


class GossipView(RunView):
    public = RunView.public | {"iteration", "loss"}  # its ledger has the nodes' reports
    own_orders = frozenset({"iteration", "loss", "direct", "relay"})

    def __init__(self, hall: Hall, figures: GossipFigures) -> None:
        super().__init__(hall)
        self.figures = figures

    @property
    def stage(self) -> Stage:
        if self.pause is not None and self.figures.stage == "training":
            return "paused"
        return "training" if self.figures.stage == "deposit" else self.figures.stage

    @property
    def condition(self) -> str:
        if self.figures.stage == "deposit":
            return "collecting the parameters of all nodes"
        if self.pause is not None and self.stage == "paused":
            return self.pause.text
        return waiting_for(self.figures.missing) if self.stage == "waiting" else self.stage

    @property
    def step(self) -> int:
        """The iteration that all present members have done."""
        return self.figures.iterations[0]

    @property
    def newest_step(self) -> int:
        return self.figures.iterations[1]

    @property
    def round_number(self) -> int:
        return self.figures.beats

    @property
    def loss(self) -> float | None:
        return self.figures.loss

    def clock(self) -> Plain:
        """Nodes have no common round, so the text says where they are."""
        figures = self.figures
        if figures.stage == "complete":
            return {"phase": "complete", "text": "the mean of all nodes is sealed"}
        if self.stage != "training":
            return {"phase": "waiting", "text": self.condition}
        least, median, most = figures.iterations
        at = f"iteration {median}" if least == most else f"iterations {least} to {most}, half of them past {median}"
        return {"phase": "waiting", "text": f"{counted(figures.present, 'node')} at {at}; topology {figures.topology}"}

    def own_summary(self) -> Plain:
        figures = self.figures
        return {
            "iterations": figures.iterations,
            "topology": figures.topology,
            "members": figures.members,
            "present": figures.present,
            "disagreement": shortened(figures.disagreement, 8),
            "error": shortened(figures.error),
            "in_steps": shortened(figures.in_steps),
            "measured_at": figures.measured_at,
            "codec": figures.codec,
            "deposits": len(figures.deposited),
        }

    def own_fields(self, node: str, counts: NodeCounts) -> Plain:
        moved, edges, members = counts.bytes_up + counts.bytes_down, self.figures.edges.get(node, ()), self.members
        return {
            "iteration": counts.iteration,
            "loss": shortened(counts.loss),
            "direct": counts.direct_up + counts.direct_down,
            "relay": counts.relay_up + counts.relay_down,
            "each": round(moved / counts.iteration) if counts.iteration else None,
            "edges": [
                {
                    "name": members[edge.node].name if edge.node in members else edge.node[:8],
                    "line": edge.line,
                    "iteration": edge.iteration,
                }
                for edge in edges[:EDGES_MAX]
            ],
            "edges_more": max(0, len(edges) - EDGES_MAX),
        }

    def own_metrics(self) -> Iterable[Metric]:
        return collect(self.figures)
