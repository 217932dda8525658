"""The metrics of a run without a centre: their definitions, and their values at scrape time."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from thinwire_common.metrics import Definition, Definitions
from thinwire_coordinator.gossip.figures import GossipFigures

METRICS = Definitions("thinwire_coordinator_")

ITERATIONS = METRICS.gauge(
    "iterations",
    'Iterations that the nodes of a run without a centre (exchange.kind = "gossip") have done. of: least, median and '
    "most among those that take part.",
    "of",
)
TOPOLOGY = METRICS.gauge("topology", "Number of the newest topology of a run without a centre; 0 before the first.")
DISAGREEMENT_IN_STEPS = METRICS.gauge(
    "disagreement_in_steps",
    "The same distance over the root mean square of the nodes' steps in that iteration. Training needs it to be small.",
)


def collect(figures: GossipFigures) -> Iterable[Metric]:
    iterations = ITERATIONS.gauge()
    for label, value in zip(("least", "median", "most"), figures.iterations, strict=True):
        iterations.add_metric((label,), value)
    yield iterations
    yield _one(TOPOLOGY, figures.topology)
    if figures.in_steps is not None:
        yield _one(DISAGREEMENT_IN_STEPS, figures.in_steps)


def _one(of: Definition, value: float) -> Metric:
    gauge = of.gauge()
    gauge.add_metric((), value)
    return gauge
