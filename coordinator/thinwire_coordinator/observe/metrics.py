"""Prometheus metrics of what happens, counted as `events` tells it; `standing` has those of how it is now.

All names are in `families`, and everything is in a registry of its own. Called on the event loop, for microseconds.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from thinwire_coordinator.observe.allreduce_baseline import ring_bytes
from thinwire_coordinator.observe.definitions import family
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
from thinwire_proto.wire.service_pb2 import Receipt

disable_created_metrics()  # type: ignore[no-untyped-call]  # or half of the series only say when the process started

BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
"""From the merge of a small model to the round of a large one."""
OUTCOMES = {
    number: name.removeprefix("REASON_").lower()
    for name, number in Receipt.Reason.items()
    if number not in (Receipt.REASON_NONE, Receipt.REASON_UNKNOWN)  # nobody is told of one that never came
}
COUNTERS: dict[str, tuple[str, ...]] = {
    "rounds_sealed_total": ("everybody", "time"),
    "rounds_void_total": ("everybody", "time"),
    "contributions_total": ("counted", *OUTCOMES.values()),
    "fingerprints_compared_total": ("equal", "different"),
    "tokens_total": (),
    "votes_total": (),
    "votes_bytes_total": (),
    "update_components_total": (),
    "update_body_bytes_total": (),
    "updates_total": (),  # the codec has its own words
    "dense_allreduce_bytes_total": (),
    "nodes_came_total": (),
    "nodes_went_total": ("left", "lost"),
    "fetches_total": ("snapshot", "corpus"),
}
HISTOGRAMS: dict[str, tuple[str, ...]] = {
    "phase_seconds": ("gather", "merge", "seal", "broadcast", "apply"),
    "contribution_after_open_seconds": (),
    "contribution_before_deadline_seconds": (),
    "contribution_receive_seconds": (),
}
GAUGES = ("sealed_timestamp_seconds", "training_loss", "held_out_loss", "held_out_loss_step", "learning_rate")
"""By name; and the values that its label can have, which are there with a 0 from the start, as rates need it."""


class Metrics:
    """Others may add what they know to `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.dense_bytes = 0
        """See `dense_allreduce_bytes_total`."""
        self._parameters = 0
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges: dict[str, Gauge] = {}
        for name, values in COUNTERS.items():
            of = family(name)
            self._counters[name] = Counter(of.name, of.help, of.labels, registry=self.registry)
            for value in values:
                self._counters[name].labels(value)
        for name, values in HISTOGRAMS.items():
            of = family(name)
            self._histograms[name] = Histogram(of.name, of.help, of.labels, registry=self.registry, buckets=BUCKETS_S)
            for value in values:
                self._histograms[name].labels(value)
        ProcessCollector(registry=self.registry)

    def begin(self, parameters: int, loss: tuple[int, float] | None) -> None:
        """The ledger is replayed: `parameters` of the model, and the newest held-out loss with its step."""
        self._parameters = parameters
        self._set("sealed_timestamp_seconds", time.time())
        if loss is not None:
            self._measured(*loss)

    def watch(self, event: Event) -> None:
        """Told of each event, those that come from every node in every round first."""
        match event:
            case ContributionTaken():
                self._took_contribution(event)
            case FingerprintCompared():
                self._count("fingerprints_compared_total", "equal" if event.equal else "different")
            case UpdateSent():
                self._phase("broadcast", event.after_s)
            case ContributionRefused():
                self._count("contributions_total", OUTCOMES[event.reason])
            case RoundSealed():
                self._sealed(event)
            case RoundVoid():
                self._count("rounds_void_total", _reason(event.why))
            case UpdateApplied():
                self._phase("apply", event.seconds)
            case LossMeasured():
                self._measured(event.step, event.loss)
            case NodeCame():
                self._count("nodes_came_total")
            case NodeWent():
                self._count("nodes_went_total", "lost" if event.lost else "left")
            case Fetched():
                self._count("fetches_total", event.what)

    def _took_contribution(self, event: ContributionTaken) -> None:
        self._count("votes_total", amount=event.components)
        self._count("votes_bytes_total", amount=event.payload_bytes)
        self._histograms["contribution_after_open_seconds"].observe(event.after_open_s)
        self._histograms["contribution_before_deadline_seconds"].observe(max(0.0, event.before_deadline_s))
        self._histograms["contribution_receive_seconds"].observe(event.receive_s)

    def _sealed(self, event: RoundSealed) -> None:
        self._count("rounds_sealed_total", _reason(event.why))
        self._set("sealed_timestamp_seconds", time.time())
        self._phase("gather", event.gather_s)
        self._phase("merge", event.merge_s)
        self._phase("seal", event.seal_s)
        self._count("contributions_total", "counted", amount=len(event.counted))
        self._count("tokens_total", amount=event.tokens)
        self._set("training_loss", event.loss)
        self._set("learning_rate", event.learning_rate)
        self._count("update_components_total", amount=event.components)
        self._count("update_body_bytes_total", amount=event.update_bytes)
        self._count("updates_total", event.codec)
        dense_bytes = ring_bytes(len(event.counted), self._parameters)
        self.dense_bytes += dense_bytes
        self._count("dense_allreduce_bytes_total", amount=dense_bytes)

    def _measured(self, step: int, loss: float) -> None:
        self._set("held_out_loss", loss)
        self._set("held_out_loss_step", step)

    def _count(self, name: str, *label: str, amount: int = 1) -> None:
        counter = self._counters[name]
        (counter.labels(*label) if label else counter).inc(amount)

    def _phase(self, phase: str, seconds: float) -> None:
        self._histograms["phase_seconds"].labels(phase).observe(seconds)

    def _set(self, name: str, value: float) -> None:
        """A gauge is there from its first value on: nobody is to read a loss of 0."""
        if name not in self._gauges:
            of = family(name)
            self._gauges[name] = Gauge(of.name, of.help, of.labels, registry=self.registry)
        self._gauges[name].set(value)


def _reason(why: str) -> str:
    return "time" if why.startswith(TIME_IS_UP) else "everybody"
