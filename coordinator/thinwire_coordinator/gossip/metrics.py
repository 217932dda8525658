"""The metrics of a gossip run: their definitions, and their values at scrape time."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from thinwire_common.metrics import Definitions
from thinwire_coordinator.gossip.figures import GossipFigures
from thinwire_coordinator.hall.observe.metrics import family, one

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
    "The same distance over the root mean square of the nodes' steps in that iteration. Training needs it to be small.",
)


def collect(figures: GossipFigures) -> Iterable[Metric]:
    yield family(ITERATIONS, dict(zip(("least", "median", "most"), figures.iterations, strict=True)))
    yield one(TOPOLOGY, figures.topology)
    if figures.in_steps is not None:
        yield one(DISAGREEMENT_IN_STEPS, figures.in_steps)
