"""Counters and histograms, kept by watching a swarm's events; `gauges` has what is computed at scrape time.

Everything is in a registry of its own. Called on the event loop, for microseconds.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from thinwire_common.metrics import Definition
from thinwire_coordinator.observe import definitions
from thinwire_coordinator.observe.allreduce_baseline import ring_bytes
from thinwire_coordinator.round.machine import TIME_IS_UP
from thinwire_coordinator.swarm.events import (
    ContributionRefused,
    ContributionTaken,
    Event,
    Fetched,
    FingerprintCompared,
    LossMeasured,
    NodeCame,
    NodeWent,
    RoundSealed,
    RoundVoid,
    UpdateApplied,
    UpdateSent,
)

disable_created_metrics()  # type: ignore[no-untyped-call]  # or half of the series only say when the process started

BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
"""From the merge of a small model to the round of a large one."""
COUNTERS = (
    definitions.ROUNDS_SEALED,
    definitions.ROUNDS_VOID,
    definitions.CONTRIBUTIONS,
    definitions.FINGERPRINTS_COMPARED,
    definitions.TOKENS,
    definitions.VOTES,
    definitions.VOTES_BYTES,
    definitions.UPDATE_COMPONENTS,
    definitions.UPDATE_BODY_BYTES,
    definitions.UPDATES,
    definitions.DENSE_ALLREDUCE_BYTES,
    definitions.NODES_CAME,
    definitions.NODES_WENT,
    definitions.FETCHES,
)
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
        self.dense_bytes = 0
        """See DENSE_ALLREDUCE_BYTES."""
        self._parameters = 0
        self._counters: dict[Definition, Counter] = {}
        self._histograms: dict[Definition, Histogram] = {}
        self._gauges: dict[Definition, Gauge] = {}
        for of in COUNTERS:
            self._counters[of] = Counter(of.name, of.help, of.labels, registry=self.registry)
            for value in of.values:
                self._counters[of].labels(value)
        for of in HISTOGRAMS:
            self._histograms[of] = Histogram(of.name, of.help, of.labels, registry=self.registry, buckets=BUCKETS_S)
            for value in of.values:
                self._histograms[of].labels(value)
        ProcessCollector(registry=self.registry)

    def begin(self, parameters: int, loss: tuple[int, float] | None) -> None:
        """The ledger is replayed: `parameters` of the model, and the newest held-out loss with its step."""
        self._parameters = parameters
        self._set(definitions.SEALED_TIMESTAMP_SECONDS, time.time())
        if loss is not None:
            self._measured(*loss)

    def watch(self, event: Event) -> None:
        """Told of each event, those that come from every node in every round first."""
        match event:
            case ContributionTaken():
                self._took_contribution(event)
            case FingerprintCompared():
                self._count(definitions.FINGERPRINTS_COMPARED, "equal" if event.equal else "different")
            case UpdateSent():
                self._phase("broadcast", event.after_s)
            case ContributionRefused():
                self._count(definitions.CONTRIBUTIONS, definitions.OUTCOMES[event.reason])
            case RoundSealed():
                self._sealed(event)
            case RoundVoid():
                self._count(definitions.ROUNDS_VOID, _reason(event.why))
            case UpdateApplied():
                self._phase("apply", event.seconds)
            case LossMeasured():
                self._measured(event.step, event.loss)
            case NodeCame():
                self._count(definitions.NODES_CAME)
            case NodeWent():
                self._count(definitions.NODES_WENT, "lost" if event.lost else "left")
            case Fetched():
                self._count(definitions.FETCHES, event.what)

    def _took_contribution(self, event: ContributionTaken) -> None:
        self._count(definitions.VOTES, amount=event.components)
        self._count(definitions.VOTES_BYTES, amount=event.payload_bytes)
        self._histograms[definitions.CONTRIBUTION_AFTER_OPEN_SECONDS].observe(event.after_open_s)
        self._histograms[definitions.CONTRIBUTION_BEFORE_DEADLINE_SECONDS].observe(max(0.0, event.before_deadline_s))
        self._histograms[definitions.CONTRIBUTION_RECEIVE_SECONDS].observe(event.receive_s)

    def _sealed(self, event: RoundSealed) -> None:
        self._count(definitions.ROUNDS_SEALED, _reason(event.why))
        self._set(definitions.SEALED_TIMESTAMP_SECONDS, time.time())
        self._phase("gather", event.gather_s)
        self._phase("merge", event.merge_s)
        self._phase("seal", event.seal_s)
        self._count(definitions.CONTRIBUTIONS, "counted", amount=len(event.counted))
        self._count(definitions.TOKENS, amount=event.tokens)
        self._set(definitions.TRAINING_LOSS, event.loss)
        self._set(definitions.LEARNING_RATE, event.learning_rate)
        self._count(definitions.UPDATE_COMPONENTS, amount=event.components)
        self._count(definitions.UPDATE_BODY_BYTES, amount=event.update_bytes)
        self._count(definitions.UPDATES, event.codec)
        dense_bytes = ring_bytes(len(event.counted), self._parameters)
        self.dense_bytes += dense_bytes
        self._count(definitions.DENSE_ALLREDUCE_BYTES, amount=dense_bytes)

    def _measured(self, step: int, loss: float) -> None:
        self._set(definitions.HELD_OUT_LOSS, loss)
        self._set(definitions.HELD_OUT_LOSS_STEP, step)

    def _count(self, of: Definition, *label: str, amount: int = 1) -> None:
        counter = self._counters[of]
        (counter.labels(*label) if label else counter).inc(amount)

    def _phase(self, phase: str, seconds: float) -> None:
        self._histograms[definitions.PHASE_SECONDS].labels(phase).observe(seconds)

    def _set(self, of: Definition, value: float) -> None:
        """A gauge is there from its first value on: nobody is to read a loss of 0."""
        if of not in self._gauges:
            self._gauges[of] = Gauge(of.name, of.help, of.labels, registry=self.registry)
        self._gauges[of].set(value)


def _reason(why: str) -> str:
    return "time" if why.startswith(TIME_IS_UP) else "everybody"
