"""Histograms, and gauges of the newest update, kept by watching a swarm's events; `counters` and `gauges` have what is
computed at scrape time.

Everything is in a registry of its own. Called on the event loop, for microseconds.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, disable_created_metrics

from thinwire_common.metrics import Definition
from thinwire_coordinator.observe import definitions
from thinwire_coordinator.swarm.events import (
    ContributionTaken,
    Event,
    LossMeasured,
    RoundSealed,
    UpdateApplied,
    UpdateSent,
)

disable_created_metrics()  # type: ignore[no-untyped-call]  # or half of the series only say when the process started

BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
"""From the merge of a small model to the round of a large one."""
HISTOGRAMS = (
    definitions.PHASE_SECONDS,
    definitions.CONTRIBUTION_AFTER_OPEN_SECONDS,
    definitions.CONTRIBUTION_BEFORE_DEADLINE_SECONDS,
    definitions.CONTRIBUTION_RECEIVE_SECONDS,
)


class Metrics:
    """Others may add what they know to `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._histograms: dict[Definition, Histogram] = {}
        self._gauges: dict[Definition, Gauge] = {}
        for of in HISTOGRAMS:
            self._histograms[of] = Histogram(of.name, of.help, of.labels, registry=self.registry, buckets=BUCKETS_S)
            for value in of.values:
                self._histograms[of].labels(value)
        ProcessCollector(registry=self.registry)

    def begin(self, loss: tuple[int, float] | None) -> None:
        """The ledger is replayed. loss: the newest held-out one, with its step."""
        self._set(definitions.SEALED_TIMESTAMP_SECONDS, time.time())
        if loss is not None:
            self._measured(*loss)

    def watch(self, event: Event) -> None:
        """Told of each event, those that come from every node in every round first."""
        match event:
            case ContributionTaken():
                self._took_contribution(event)
            case UpdateSent():
                self._phase("broadcast", event.after_s)
            case RoundSealed():
                self._sealed(event)
            case UpdateApplied():
                self._phase("apply", event.seconds)
            case LossMeasured():
                self._measured(event.step, event.loss)

    def _took_contribution(self, event: ContributionTaken) -> None:
        self._histograms[definitions.CONTRIBUTION_AFTER_OPEN_SECONDS].observe(event.after_open_s)
        self._histograms[definitions.CONTRIBUTION_BEFORE_DEADLINE_SECONDS].observe(max(0.0, event.before_deadline_s))
        self._histograms[definitions.CONTRIBUTION_RECEIVE_SECONDS].observe(event.receive_s)

    def _sealed(self, event: RoundSealed) -> None:
        self._set(definitions.SEALED_TIMESTAMP_SECONDS, time.time())
        self._phase("gather", event.gather_s)
        self._phase("merge", event.merge_s)
        self._phase("seal", event.seal_s)
        self._set(definitions.TRAINING_LOSS, event.loss)
        self._set(definitions.LEARNING_RATE, event.learning_rate)

    def _measured(self, step: int, loss: float) -> None:
        self._set(definitions.HELD_OUT_LOSS, loss)
        self._set(definitions.HELD_OUT_LOSS_STEP, step)

    def _phase(self, phase: str, seconds: float) -> None:
        self._histograms[definitions.PHASE_SECONDS].labels(phase).observe(seconds)

    def _set(self, of: Definition, value: float) -> None:
        """A gauge is there from its first value on: nobody is to read a loss of 0."""
        if of not in self._gauges:
            self._gauges[of] = Gauge(of.name, of.help, of.labels, registry=self.registry)
        self._gauges[of].set(value)
