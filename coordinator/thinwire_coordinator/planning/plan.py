"""A planned run: the cost of one of its steps, and the figures and warnings that follow from it for any exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from thinwire_common.units import human_bytes, human_count
from thinwire_coordinator.planning.facts import DataFacts, ModelFacts, SwarmFacts
from thinwire_coordinator.planning.planned import AMEND
from thinwire_coordinator.planning.settings import known_batch, rate_for
from thinwire_proto.contract import MergedMuonSpec, RunSpec
from thinwire_proto.needs import (
    PROGRAM_BYTES,
    SAMPLES_MAX_CARD,
    samples_at_once,
    state_disk_bytes,
    trained_bytes,
)
from thinwire_proto.pass_memory import SHARE_OF_CARD, best_fit, pass_words

MICRO_BATCH = 8
"""The largest micro-batch of a node on a CPU, unless its volunteer says otherwise."""
COORDINATOR_BYTES_A_PARAMETER = 16
"""Measured peak (docs/performance.md): replica, copy, the model that measures."""
RATE_FACTOR_MAX = 3.0


@dataclass(frozen=True)
class Step:
    """One step of all nodes: a round, or an iteration of each.

    exchange_s: of its transfers, which may go on beside computing. sent_bytes, received_bytes: by a node. tokens: of
    all nodes. uplink_bits_s: what the coordinator's own line must send. memory_bytes: of the coordinator, more than
    what each exchange needs. disk_bytes: what the coordinator keeps of a step. snapshots: that it keeps.
    """

    seconds: float
    computing_s: float
    exchange_s: float
    sent_bytes: float
    received_bytes: float
    tokens: float
    uplink_bits_s: float
    memory_bytes: float
    disk_bytes: float
    snapshots: int

    @property
    def both_ways_bytes(self) -> float:
        return self.sent_bytes + self.received_bytes


class Stage(NamedTuple):
    """Steps of a run until an amendment, which all cost the same. begins: the first. steps: how many."""

    begins: int
    steps: int
    run: RunSpec
    step: Step


@dataclass(frozen=True)
class Plan:
    """A run with `swarm.nodes` equal nodes that are there all the time.

    stages: until the first amendment that is planned, and on from each. memory_bytes: of one node's machine.
    micro_batch: the largest that fits into it.
    """

    stages: Sequence[Stage]
    model: ModelFacts
    data: DataFacts
    swarm: SwarmFacts
    memory_bytes: float
    micro_batch: int

    @property
    def run(self) -> RunSpec:
        """The run as it begins, completed."""
        return self.stages[0].run

    @property
    def step(self) -> Step:
        """The cost of one of its first steps."""
        return self.stages[0].step

    @property
    def each(self) -> list[Plan]:
        """The plan of the run as it is in each stage."""
        return [replace(self, stages=[stage]) for stage in self.stages]

    def most(self, of: Callable[[Plan], float]) -> float:
        """The largest figure of all stages."""
        return max(map(of, self.each))

    @property
    def heaviest(self) -> RunSpec:
        """The run as it is in the stage that needs most memory of a node."""
        return max((stage.run for stage in self.stages), key=self._memory_of)

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    @property
    def seconds(self) -> float:
        return sum(stage.steps * stage.step.seconds for stage in self.stages)

    @property
    def both_ways_bytes(self) -> float:
        """Of one node, in the whole run."""
        return sum(stage.steps * stage.step.both_ways_bytes for stage in self.stages)

    @property
    def tokens(self) -> float:
        return sum(stage.steps * stage.step.tokens for stage in self.stages)

    @property
    def passes(self) -> float:
        """Passes over the data; 0 if the data are not known."""
        return self.tokens / self.data.all_tokens if self.data.all_tokens else 0.0

    @property
    def node_memory_bytes(self) -> float:
        return self._memory_of(self.heaviest)

    def _memory_of(self, run: RunSpec) -> float:
        return node_memory_bytes(run, self.model, self.micro_batch)

    @property
    def node_disk_bytes(self) -> float:
        """Disk space of a node that comes to read all of the data. A bounded cache may keep less."""
        of_data = max(self.data.bytes, self.data.node_bytes_min)
        of_state = max(state_disk_bytes(stage.run, self.model.size) for stage in self.stages)
        return of_state + self.model.base_bytes + of_data

    @property
    def coordinator_memory_bytes(self) -> float:
        of_step = max(stage.step.memory_bytes for stage in self.stages)
        own = COORDINATOR_BYTES_A_PARAMETER * self.model.trained + of_step
        return PROGRAM_BYTES + own + self.model.frozen_bytes

    @property
    def coordinator_disk_bytes(self) -> float:
        kept = self.snapshot_bytes * self.step.snapshots
        return kept + sum(stage.steps * stage.step.disk_bytes for stage in self.stages) + self.data.bytes

    @property
    def snapshot_bytes(self) -> float:
        return (4.0 + self.run.rule.MOMENT_BYTES_A_PARAMETER) * self.model.trained


def node_memory_bytes(run: RunSpec, facts: ModelFacts, micro_batch: int) -> float:
    """Peak memory of a node on a CPU. On a card with bfloat16, activations take about 0.6 of what is counted here.

    Of a base whose bits the node chooses: with the fewest, and with checkpoints if they save memory for one sample."""
    samples, own = samples_at_once(run, micro_batch), PROGRAM_BYTES + trained_bytes(run, facts.size)
    if not facts.bases:
        return own + facts.frozen_bytes + samples * facts.activation_bytes
    fewest = facts.bases[-1]
    if samples == 1:
        return own + fewest.frozen + fewest.least
    return own + fewest.frozen + fewest.activations.peak(samples, checkpoints=False, decoding=fewest.decoding)


def base_memories(run: RunSpec, facts: ModelFacts) -> dict[int, float]:
    """`node_memory_bytes` of one sample by the bits of the base, the most exact first."""
    own = PROGRAM_BYTES + trained_bytes(run, facts.size)
    return {base.bits or 0: own + base.frozen + base.least for base in facts.bases}


def micro_batch_for(run: RunSpec, facts: ModelFacts, memory_bytes: float) -> int:
    """The largest micro-batch, a power of two up to the default, that fits into the memory; 1 if none does."""
    found = MICRO_BATCH
    while found > 1 and node_memory_bytes(run, facts, found) > memory_bytes:
        found //= 2
    return found


@dataclass(frozen=True)
class Advice:
    """A warning about a dotted key."""

    key: str
    text: str


def in_stages(of_stages: Sequence[Sequence[Advice]]) -> Iterator[Advice]:
    """The warnings about each stage of a run: those about the first, then what others have of their own."""
    keys = set[str]()
    for number, of_stage in enumerate(of_stages):
        yield from (
            one if number == 0 else Advice(AMEND, f"{one.key}: {one.text}") for one in of_stage if one.key not in keys
        )
        keys |= {one.key for one in of_stage}


def common_advice(plan: Plan) -> Iterator[Advice]:
    """The warnings about a run of any exchange: it does not fit into memory, trains badly, or never begins."""
    yield from _memory(plan)
    yield from _rate(plan)
    for key, why in plan.run.rule.doubts(plan.model.parameters, plan.run.model.vocabulary):
        yield Advice(key, why)
    nodes, rounds = plan.swarm.nodes, plan.run.round
    if nodes < rounds.min_contributions:
        yield Advice(
            "round.min_contributions",
            f"the run waits for {rounds.min_contributions} nodes, and there are {nodes}: it never begins",
        )
    if nodes > rounds.nodes_max:
        yield Advice("round.nodes_max", f"only {rounds.nodes_max} of {nodes} nodes may take part")


def _memory(plan: Plan) -> Iterator[Advice]:
    if plan.swarm.cards > 1:
        site = fit_of(plan.run, plan.model, plan.memory_bytes, plan.swarm.cards)
        if site.fits is False:
            yield Advice("model", f"{plan.swarm.cards} cards of {human_bytes(plan.memory_bytes)}: {site.words}")
        return
    needed = plan.node_memory_bytes
    has = f"and the machine has {human_bytes(plan.memory_bytes)}"
    if needed > plan.memory_bytes:
        yield Advice(
            "model",
            f"a node needs about {human_bytes(needed)} of memory even with one sample at a time, {has}; "
            "choose a smaller model or context, or larger machines",
        )


def _rate(plan: Plan) -> Iterator[Advice]:
    if plan.model.frozen or plan.model.begins:
        return  # other rates suit a model that is fine-tuned
    given, known = plan.run.schedule.learning_rate, rate_for(plan.model, plan.run.rule)
    larger = 1.0
    if isinstance(plan.run.rule, MergedMuonSpec):  # steps of a larger batch may be longer by its root
        larger = max(1.0, plan.step.tokens / known_batch(plan.model.trained))
    if not known / RATE_FACTOR_MAX <= given <= known * RATE_FACTOR_MAX * larger**0.5:
        factor = f"{given / known:.3g} times" if given > known else f"a {known / given:.3g}th of"
        yield Advice(
            "schedule.learning_rate",
            f"{given:g} is {factor} what is known to work for {human_count(plan.model.trained)} parameters: {known:g}",
        )


@dataclass(frozen=True)
class SiteFit:
    """fits: None: it is not known, because the passes of the model cannot be counted. words: how the cards hold the
    model, and the samples of a pass of each; or why they cannot."""

    fits: bool | None
    words: str


def fit_of(run: RunSpec, facts: ModelFacts, card_bytes: float, cards: int) -> SiteFit:
    """card_bytes: the memory of each card. The same sums as on a node, without the host's memory."""
    if not facts.memories or not all(memory.activations.whole for memory in facts.memories):
        return SiteFit(None, "not known: the passes of this model cannot be counted")
    samples, room = samples_at_once(run, SAMPLES_MAX_CARD), int(SHARE_OF_CARD * card_bytes)
    trained = trained_bytes(run, facts.size)
    if (found := best_fit(facts.memories, room - trained, samples)) is not None:
        return SiteFit(True, f"whole on each card: {pass_words(*found, samples, facts.context)}")
    if facts.frozen:
        return SiteFit(False, "too large: each card must hold the whole frozen base and adapter")
    checkpointed = [replace(one, activations=one.activations.always_checkpointed) for one in facts.memories]
    found = best_fit(checkpointed, room - trained // cards - facts.gathered_bytes, samples)
    if found is None:
        return SiteFit(False, "too large, even divided among the cards")
    memory, largest = found
    if why := run.rule.NEEDS_WHOLE:
        return SiteFit(
            False, f'too large: rule.kind = "{run.rule.kind}" {why}, so each card must hold the whole model; try "demo"'
        )
    words = pass_words(memory, replace(largest, checkpoints=True), samples, facts.context)
    return SiteFit(True, f"divided among the cards: {words} on each")
