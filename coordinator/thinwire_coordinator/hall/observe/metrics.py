"""Histograms, and gauges of the newest update, maintained by watching a swarm's events.

`counters` and `gauges` hold the metrics that are computed at scrape time. All metrics are in a separate registry. The
watcher is called on the event loop and takes microseconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, disable_created_metrics

from thinwire_common.metrics import Definition
from thinwire_coordinator.hall.events import (
    BeatSealed,
    ContributionTaken,
    Event,
    LossMeasured,
    RoundSealed,
    UpdateApplied,
    UpdateSent,
)
from thinwire_coordinator.hall.observe import definitions, star_metrics
from thinwire_proto.task import HeldOutSet

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series

BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
"""From the merge of a small model to the round of a large one."""
HISTOGRAMS = (star_metrics.PHASE_SECONDS, star_metrics.CONTRIBUTION_SECONDS)


class Metrics:
    """Updates histograms and gauges on events. Other collectors can be added to `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._histograms: dict[Definition, Histogram] = {}
        self._gauges: dict[Definition, Gauge] = {}
        self._sets: set[str] = set()
        for of in HISTOGRAMS:
            self._histograms[of] = Histogram(of.name, of.help, of.labels, registry=self.registry, buckets=BUCKETS_S)
            for value in of.values:
                self._histograms[of].labels(value)
        ProcessCollector(registry=self.registry)

    def begin(self, losses: Mapping[str, float], sets: Sequence[HeldOutSet], context: int) -> None:
        """Initialize the gauges once the ledger is replayed.

        losses: the newest loss, by the name of the held-out set. sets: those that are measured.
        context: tokens that one sample predicts.
        """
        self._set(definitions.SEALED_TIMESTAMP_SECONDS, time.time())
        self._sets = {found.name for found in sets}
        for found in sets:
            if found.text_bytes:
                bytes_per_token = found.text_bytes / (found.samples * context)
                self._set(definitions.HELD_OUT_TEXT_BYTES_PER_TOKEN, bytes_per_token, found.name)
        for name, loss in losses.items():
            self._measured(name, loss)

    def watch(self, event: Event) -> None:
        """Handle an event. The most frequent events come first: those for every node in every round."""
        match event:
            case ContributionTaken():
                self._took_contribution(event)
            case UpdateSent():
                self._phase("broadcast", event.after_s)
            case RoundSealed():
                self._sealed(event)
            case BeatSealed():
                self._sealed_beat(event)
            case UpdateApplied():
                self._phase("apply", event.seconds)
            case LossMeasured():
                self._measured(event.name, event.loss)

    def _took_contribution(self, event: ContributionTaken) -> None:
        seconds = self._histograms[star_metrics.CONTRIBUTION_SECONDS]
        seconds.labels("after_open").observe(event.after_open_s)
        seconds.labels("before_deadline").observe(max(0.0, event.before_deadline_s))
        seconds.labels("receive").observe(event.receive_s)

    def _sealed(self, event: RoundSealed) -> None:
        self._set(definitions.SEALED_TIMESTAMP_SECONDS, time.time())
        self._phase("gather", event.gather_s)
        self._phase("merge", event.merge_s)
        self._phase("seal", event.seal_s)
        self._set(definitions.TRAINING_LOSS, event.loss)
        self._set(definitions.LEARNING_RATE, event.learning_rate)

    def _sealed_beat(self, event: BeatSealed) -> None:
        """A beat has no phases. If nothing was trained in it, the loss stays that of an earlier one."""
        self._set(definitions.SEALED_TIMESTAMP_SECONDS, time.time())
        if math.isfinite(event.loss):
            self._set(definitions.TRAINING_LOSS, event.loss)
        self._set(definitions.LEARNING_RATE, event.learning_rate)

    def _measured(self, name: str, loss: float) -> None:
        if name not in self._sets:
            return  # a set that is no longer measured; the number of series stays bounded
        self._set(definitions.HELD_OUT_LOSS, loss, name)

    def _phase(self, phase: str, seconds: float) -> None:
        self._histograms[star_metrics.PHASE_SECONDS].labels(phase).observe(seconds)

    def _set(self, of: Definition, value: float, *labels: str) -> None:
        """Set a gauge, and create it at its first value, so that a scrape never shows a loss of 0."""
        if of not in self._gauges:
            self._gauges[of] = Gauge(of.name, of.help, of.labels, registry=self.registry)
        gauge = self._gauges[of]
        (gauge.labels(*labels) if labels else gauge).set(value)
