"""The metrics of a coordinator, in a registry of their own.

`Metrics` maintains histograms, and gauges of the newest update, by watching a swarm's events: it is called on the event
loop and takes microseconds. `Counters` and `Gauges` compute theirs at scrape time, on the event loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from thinwire_common.metrics import Definition
from thinwire_coordinator.hall.access.door import DoorReason
from thinwire_coordinator.hall.capacity import Need
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.events import (
    BeatSealed,
    ContributionTaken,
    Event,
    LossMeasured,
    PhaseTook,
    RoundSealed,
)
from thinwire_coordinator.hall.observe import definitions
from thinwire_coordinator.hall.observe.readiness import Readiness
from thinwire_coordinator.hall.view import RunView
from thinwire_coordinator.hall.workers import Workers
from thinwire_proto.task import HeldOutSet

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series

BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
"""From the merge of a small model to the round of a large one."""
HISTOGRAMS = (definitions.PHASE_SECONDS, definitions.CONTRIBUTION_SECONDS)


class Metrics:
    """Updates histograms and gauges on events. Other collectors can be added to `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._histograms: dict[Definition, Histogram] = {}
        self._gauges: dict[Definition, Gauge] = {}
        self._sets: Callable[[], Mapping[str, HeldOutSet]] = dict
        self._context = 1
        for of in HISTOGRAMS:
            self._histograms[of] = Histogram(of.name, of.help, of.labels, registry=self.registry, buckets=BUCKETS_S)
            for value in of.values:
                self._histograms[of].labels(value)
        ProcessCollector(registry=self.registry)

    def begin(self, losses: Mapping[str, float], sets: Callable[[], Sequence[HeldOutSet]], context: int) -> None:
        """Initialize the gauges once the ledger is replayed.

        losses: the newest loss, by the name of the held-out set. sets: those that are measured; an amendment adds one.
        context: tokens that one sample predicts.
        """
        self._set(definitions.SEALED_TIMESTAMP_SECONDS, time.time())
        self._sets = lambda: {found.name: found for found in sets()}
        self._context = context
        for name in self._sets():
            self._known(name)
        for name, loss in losses.items():
            self._measured(name, loss)

    def watch(self, event: Event) -> None:
        """Handle an event. The most frequent events come first: those for every node in every round."""
        match event:
            case ContributionTaken():
                self._took_contribution(event)
            case PhaseTook():
                self._phase(event.phase, event.seconds)
            case RoundSealed():
                self._sealed(event)
            case BeatSealed():
                self._sealed_beat(event)
            case LossMeasured():
                self._measured(event.name, event.loss)

    def _took_contribution(self, event: ContributionTaken) -> None:
        seconds = self._histograms[definitions.CONTRIBUTION_SECONDS]
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
        if not self._known(name):
            return  # a set that is no longer measured; the number of series stays bounded
        self._set(definitions.HELD_OUT_LOSS, loss, name)

    def _known(self, name: str) -> bool:
        """Whether a set is measured. If so, how much text its tokens stand for is exported too."""
        found = self._sets().get(name)
        if found is not None and found.text_bytes:
            bytes_per_token = found.text_bytes / (found.counted or found.samples * self._context)
            self._set(definitions.HELD_OUT_TEXT_BYTES_PER_TOKEN, bytes_per_token, name)
        return found is not None

    def _phase(self, phase: str, seconds: float) -> None:
        self._histograms[definitions.PHASE_SECONDS].labels(phase).observe(seconds)

    def _set(self, of: Definition, value: float, *labels: str) -> None:
        """Set a gauge, and create it at its first value, so that a scrape never shows a loss of 0."""
        if of not in self._gauges:
            self._gauges[of] = Gauge(of.name, of.help, of.labels, registry=self.registry)
        gauge = self._gauges[of]
        (gauge.labels(*labels) if labels else gauge).set(value)


class Counters(Collector):
    """Exports a swarm's counts. `counts` is empty until `Exposition.begin` replaces it with the swarm's."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    def collect(self) -> Iterable[Metric]:
        counts = self.counts
        refused = {reason.value: count for reason, count in counts.not_counted.items()}
        ended = (("sealed", counts.rounds_sealed), ("void", counts.rounds_void))
        reasons = ("everybody", "time")
        yield family(definitions.ROUNDS, {(how, why): by[why] for how, by in ended for why in reasons})
        yield family(definitions.CONTRIBUTIONS, {"counted": counts.counted} | refused)
        compared = {"equal": counts.fingerprints_equal, "different": counts.fingerprints_different}
        yield family(definitions.FINGERPRINTS_COMPARED, compared)
        yield one(definitions.TOKENS, counts.tokens)
        yield one(definitions.SAMPLES_SKIPPED, counts.samples_skipped)
        yield family(definitions.COMPONENTS, {"up": counts.votes, "down": counts.update_components})
        yield family(definitions.COMPONENT_BYTES, {"up": counts.votes_bytes, "down": counts.update_bytes})
        yield one(definitions.DENSE_ALLREDUCE_BYTES, counts.dense_bytes)
        yield family(definitions.CHANGES, {"came": counts.came, "left": counts.left, "lost": counts.lost})
        refusals = {(what, why.value): counts.refused[what, why] for what in ("call", "join") for why in DoorReason}
        yield family(definitions.REFUSED, refusals)
        yield family(definitions.TRUST_DECISIONS, {verdict.value: count for verdict, count in counts.judged.items()})
        yield family(definitions.EVALUATION_PARTS, counts.evaluation_parts)
        yield from self._bytes()

    def _bytes(self) -> Iterable[Metric]:
        traffic = self.counts.traffic
        ways = (("sent", traffic.sent), ("received", traffic.received))
        yield family(definitions.PAYLOAD_BYTES, {(way, kind): n for way, by in ways for kind, n in by.bytes.items()})
        yield family(definitions.MESSAGES, {(way, kind): n for way, by in ways for kind, n in by.messages.items()})
        connections = traffic.connections
        if connections is not None and connections.can_look:
            wire = connections.wire
            yield family(definitions.WIRE_BYTES, {"sent": wire.sent, "received": wire.received})


STATES = ("starting", "waiting", "paused", "training", "complete", "failed")
PLACES = ("state", "bodies")
"""Labels of the disks, in the order in which `capacity.measure` returns them."""
CONTRACT_DIGITS = 16
VERSION = version("thinwire")  # read once, because the lookup reads the disk


class Gauges(Collector):
    """Exports the current state of the coordinator. `needs` holds the latest measurement of each disk."""

    def __init__(self, readiness: Readiness, workers: Workers) -> None:
        self._readiness = readiness
        self._workers = workers
        self.needs: list[Need] = []

    def collect(self) -> Iterable[Metric]:
        swarm = self._readiness.swarm
        yield family(definitions.STATE, dict.fromkeys(STATES, 0) | {self._state(): 1})
        yield family(definitions.QUEUE_DEPTH, self._workers.depths())
        for of, values in (
            (definitions.DISK_FREE_BYTES, [need.free_bytes for need in self.needs]),
            (definitions.DISK_NEEDED_BYTES, [max(0, need.total_bytes - need.there_bytes) for need in self.needs]),
        ):
            yield family(of, dict(zip(PLACES, values, strict=False)))
        if swarm is not None:
            yield from _of_swarm(swarm)

    def _state(self) -> str:
        if self._readiness.swarm is None:
            return "starting"
        return "failed" if self._readiness.failed else self._readiness.swarm.stage


def _of_swarm(swarm: RunView) -> Iterable[Metric]:
    contract = swarm.contract
    yield family(definitions.INFO, {(VERSION, contract.hash.hex()[:CONTRACT_DIGITS], contract.round.pace): 1})
    yield one(definitions.PARAMETERS, swarm.layout.parameters)
    yield one(definitions.ROUND, swarm.round_number)
    yield one(definitions.ROUND_LENGTH_SECONDS, contract.round.length_s)
    yield one(definitions.STEP, swarm.step)
    yield one(definitions.STEPS, swarm.steps)
    yield one(definitions.AMENDMENTS, len(contract.amendments))
    active = swarm.active
    yield family(definitions.NODES, {"active": active, "away": len(swarm.members) - active})
    yield from swarm.own_metrics()


def family(of: Definition, values: Mapping[Any, float]) -> Metric:
    """The samples of a counter or a gauge: by the value of its only label, or by the tuple of its labels' values.

    Label values that are known in advance start at 0."""
    found: Any = of.family()
    for labels, value in (dict.fromkeys(of.values, 0.0) | dict(values)).items():
        found.add_metric((labels,) if isinstance(labels, str) else labels, value)
    made: Metric = found
    return made


def one(of: Definition, value: float) -> Metric:
    """The sample of a counter or a gauge without labels."""
    return family(of, {(): value})
