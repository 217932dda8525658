"""The view of a gossip run, for status, page and metrics."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from thinwire_common.metrics import Definitions
from thinwire_coordinator.gossip.figures import GossipFigures
from thinwire_coordinator.hall.counts import NodeCounts
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.observe.metrics import family, one
from thinwire_coordinator.hall.view import Plain, RunView, Stage, counted, waiting_for
from thinwire_coordinator.hall.web.status import shortened

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
