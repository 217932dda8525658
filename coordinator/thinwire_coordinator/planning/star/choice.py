"""Chooses what nodes do with gradients, and the `demo` and the round that go with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from thinwire_coordinator.planning.facts import ModelFacts, SwarmFacts
from thinwire_coordinator.planning.plan import micro_batch_for
from thinwire_coordinator.planning.settings import MORE_PASSES_MAX, check_muon, known_batch, suits_muon
from thinwire_coordinator.planning.star.growth import Size, demos_of
from thinwire_coordinator.planning.star.traffic import transfer_s
from thinwire_planner.methods.growth import GROWTHS, mean_growth
from thinwire_planner.methods.star import DEMO, LOCAL_MUON, LOCAL_STEPS, MERGED_MUON, tokens_of
from thinwire_proto.contract import (
    DemoRuleSpec,
    DemoSpec,
    LocalMuonSpec,
    MergedMuonSpec,
    RoundSpec,
    RuleSpec,
    RunSpec,
)
from thinwire_proto.contract.exchanges.star import most_nodes
from thinwire_proto.contract.round import LEASE_ROUNDS

BUDGETS = tuple(DemoSpec(k=k, update_topk=kept) for k, kept in ((96, 320), (44, 352), (44, 176), (22, 176), (22, 88)))
"""Settings of [demo], from the most bytes to the fewest."""
NARROW_PADDING_MIN = 0.5
"""In tiles that are emptier than this, such as those of an adapter, k is a share of what is in them."""
LOCAL_ROUNDS_MIN = 256
"""With fewer rounds than in docs/convergence, local steps learn less."""
GROWING_ROUNDS_MIN = 700
"""With fewer rounds, those that grow learn less than others (docs/log/convergence.md)."""
BATCH_SLACK = 1.1
"""A node's part of a batch is rounded to whole samples, so that the batch may exceed what is known to suit by this."""
ALIKE = 0.1
"""Two seeds differ by so many tokens for the same loss, so another rule than `demo` has to need fewer than that."""
TRANSFER_PART = 0.5
"""The part of a round that upload and download may take, so that a slower link than predicted still delivers."""
STRETCH_MAX = 2.0
"""A round in which nodes train until its end may be longer than the batch wants by this factor. Beyond it, they send
less."""
ROOM_FOR_STEPS = 1.25
"""A round is so many times as long as its local steps take. A node makes its micro-batches smaller where they take more
than a quarter of a round."""
IDLE_PART = 0.25
"""The part of a round in which nodes with `merged_muon` may wait: for its transfers, and for the step. Others train
meanwhile."""
STEP_PART = 0.5
"""The part of a round that this step may take on the coordinator."""
CORE_FLOAT64_FLOPS = 13e9
"""Operations a second: half of what a core trains with (`facts.MACHINES`)."""
CARD_FLOPS, CARD_FLOAT64_PART, CPU_FLOAT64_PART = 2e12, 1 / 40, 1 / 2
"""A node that trains with more operations a second is taken for a card. Cards for games compute 1/40 as fast in
float64 as they train."""
ROUND_S_MIN, ROUND_S_MAX = 2.0, 600.0
"""In a shorter round, a machine that is busy for a moment misses its end; a longer one shows too seldom that all is
well."""


def budgets(padding: float) -> tuple[DemoSpec, ...]:
    """BUDGETS for a model with this part of padding in its tiles, so that an adapter sends as large a share of its
    parameters as full training does."""
    part = 1 - padding if padding >= NARROW_PADDING_MIN else 1.0
    return tuple(
        DemoSpec(k=max(1, round(part * one.k)), update_topk=max(1, round(part * one.update_topk))) for one in BUDGETS
    )


@dataclass(frozen=True)
class Amount:
    """How much a run trains. tokens: of all nodes. rounds: if they are given, in place of tokens. growth: how many
    times as large its rounds become, if that is given."""

    tokens: float
    rounds: int | None = None
    growth: int | None = None


@dataclass(frozen=True)
class RoundChoice:
    """rule: section of the run. sizes: of its rounds, by their samples over those of the first. samples: of a node for
    its full weight, in the first. stretch: a step of the known batch takes so many times as long as if nodes never
    waited."""

    rule: RuleSpec
    sizes: Mapping[int, Size]
    samples: float
    stretch: float = 1.0

    @property
    def first(self) -> Size:
        return self.sizes[1]

    @property
    def growth(self) -> int:
        """By how many times as large rounds become."""
        return max(self.sizes)

    @property
    def demo(self) -> DemoSpec:
        """The section of the last rounds."""
        return self.sizes[self.growth].demo

    def tokens(self, nodes: int) -> float:
        """Tokens for a loss, over those of Muon with every gradient exchanged."""
        return tokens_of(self.rule.kind, self.demo.vote_levels, nodes, self.growth)

    def cost(self, nodes: int) -> float:
        """The same, with the tokens that nodes could train while they wait. Where no round may be shorter, a rule with
        more steps a round can reach the loss sooner at a higher cost (`planner._local_steps`)."""
        return self.tokens(nodes) * max(1.0, self.stretch)


@dataclass(frozen=True)
class LocalSteps:
    """The local steps of Muon that suit a model and a node.

    tokens: of a step. more_passes: what orthogonalizing takes beside a step's pass, in passes. seconds: of LOCAL_STEPS
    steps.
    """

    rule: LocalMuonSpec
    tokens: int
    more_passes: float
    seconds: float


def choice_for(
    facts: ModelFacts, swarm: SwarmFacts, amount: Amount, memory_bytes: float, kind: str | None = None
) -> RoundChoice:
    """The choice for this model and these nodes. memory_bytes: of a node. kind: of the rule, of the star; by default
    the one of least cost; `demo` if none is much better.

    Raises ConfigError if steps of Muon are asked for, and do not suit the model.
    """
    if kind in (LOCAL_MUON, MERGED_MUON):
        check_muon(facts, LocalMuonSpec(), instead=DEMO)
    if kind == DEMO:
        return _votes(facts, swarm)
    if kind == LOCAL_MUON:
        return _local_muon(facts, swarm, amount, local_steps(facts, swarm, memory_bytes))
    if kind == MERGED_MUON:
        return _merged_muon(facts, swarm, amount)
    votes, *others = _choices(facts, swarm, amount, memory_bytes)
    best = min(others, key=lambda choice: choice.cost(swarm.nodes), default=votes)
    return best if best.cost(swarm.nodes) * (1 + ALIKE) < votes.cost(swarm.nodes) else votes


def _choices(facts: ModelFacts, swarm: SwarmFacts, amount: Amount, memory_bytes: float) -> Iterator[RoundChoice]:
    """A choice for each rule that is known to train this model; `demo`, which trains any, is the first."""
    yield _votes(facts, swarm)
    if not suits_muon(facts, LocalMuonSpec()):
        return
    yield _merged_muon(facts, swarm, amount)
    steps = local_steps(facts, swarm, memory_bytes)
    rounds = amount.rounds or amount.tokens / (LOCAL_STEPS * steps.tokens * swarm.nodes)
    if steps.more_passes <= MORE_PASSES_MAX and rounds >= LOCAL_ROUNDS_MIN and steps.seconds <= ROUND_S_MAX:
        choice = _local_muon(facts, swarm, amount, steps)
        if choice.first.seconds <= STRETCH_MAX * _wanted_s(ROOM_FOR_STEPS * steps.seconds):
            yield choice


def local_steps(facts: ModelFacts, swarm: SwarmFacts, memory_bytes: float) -> LocalSteps:
    """Steps of the known batch, or larger ones, so that orthogonalizing takes little of the time; but not larger than a
    node takes by default, and has memory for."""
    rule = LocalMuonSpec()
    run = RunSpec(rule=rule, demo=DemoSpec.model_validate(rule.DEMO_DEFAULTS))
    least = math.ceil(rule.more_passes(facts.parameters, facts.context) / MORE_PASSES_MAX)
    wanted = max(round(known_batch(facts.trained) / swarm.nodes / facts.context), least)
    micro_batch = min(wanted, micro_batch_for(run, facts, memory_bytes))
    tokens = micro_batch * facts.context
    more_passes = rule.more_passes(facts.parameters, tokens)
    seconds = LOCAL_STEPS * tokens * (1 + more_passes) / swarm.tokens_s
    return LocalSteps(rule.model_copy(update={"micro_batch": micro_batch}), tokens, more_passes, seconds)


def _votes(facts: ModelFacts, swarm: SwarmFacts) -> RoundChoice:
    """The setting of `demo` with the most bytes whose transfers fit into a round of the known batch."""
    tokens = known_batch(facts.trained) / swarm.nodes
    wanted_s = _wanted_s(tokens / swarm.tokens_s)
    needed = [(transfer_s(facts, demo, swarm) / TRANSFER_PART, demo) for demo in budgets(facts.padding)]
    needed_s, demo = next((one for one in needed if one[0] <= STRETCH_MAX * wanted_s), needed[-1])
    return RoundChoice(DemoRuleSpec(), {1: Size(max(wanted_s, needed_s), demo)}, tokens / facts.context)


def _merged_muon(facts: ModelFacts, swarm: SwarmFacts, amount: Amount) -> RoundChoice:
    """The levels and the growth that reach a loss soonest: fewer levels need more tokens, and larger rounds wait more
    seldom. In seven levels alone, growth was not measured: rounds grow there only if there is no room for the sum of
    more."""
    fine, coarse = map(DemoSpec.model_validate, (MergedMuonSpec.FINE, MergedMuonSpec.DEMO_DEFAULTS))
    growths = list(_growths(facts, swarm, amount))
    wanted = [(demo, times) for demo in (coarse, fine) for times in growths if demo == fine or times == 1]
    if swarm.nodes > nodes_max(fine):
        wanted = [(coarse, times) for times in growths]
    waiting_s = {demo: transfer_s(facts, demo, swarm) for demo in (coarse, fine)}
    found = [_in_levels(demos_of(demo, times), waiting_s, facts, swarm) for demo, times in wanted]
    return min(found, key=lambda one: one.stretch * one.tokens(swarm.nodes))


def _growths(facts: ModelFacts, swarm: SwarmFacts, amount: Amount) -> Iterator[int]:
    """By how many times as large rounds may become: there are rounds enough, the last ones take a node no longer to
    compute than ROUND_S_MAX, and no batch is larger than is known to suit the model."""
    if amount.growth or amount.rounds:
        yield amount.growth or 1
        return
    tokens = _samples(facts, swarm) * facts.context
    for times in GROWTHS:
        rounds = amount.tokens / (tokens * swarm.nodes) / mean_growth(times)
        fits = times * tokens * swarm.nodes <= max(GROWTHS) * BATCH_SLACK * known_batch(facts.trained)
        if times == 1 or (rounds >= GROWING_ROUNDS_MIN and fits and times * tokens / swarm.tokens_s <= ROUND_S_MAX):
            yield times


def _samples(facts: ModelFacts, swarm: SwarmFacts) -> int:
    """A node's part of the known batch: at least a sample, and what it does in the longest round."""
    known = known_batch(facts.trained) / swarm.nodes
    return max(1, round(min(known, ROUND_S_MAX * swarm.tokens_s) / facts.context))


def _in_levels(
    demos: Mapping[int, DemoSpec], transfers_s: Mapping[DemoSpec, float], facts: ModelFacts, swarm: SwarmFacts
) -> RoundChoice:
    """Rounds of `merged_muon` that begin with the known batch, and are long enough for their transfers, and for the
    step on every replica. demos: of each size of the rounds. transfers_s: what each takes."""
    rule, samples = MergedMuonSpec(), _samples(facts, swarm)
    computing_s = samples * facts.context / swarm.tokens_s
    wanted_s, own_s = _wanted_s(computing_s), step_s(rule, facts, swarm)
    least_s = max(wanted_s, coordinator_step_s(rule, facts, swarm) / STEP_PART)
    sizes = {}
    for larger, demo in demos.items():
        waiting_s = transfers_s[demo] + own_s
        whole_s = larger * computing_s + waiting_s if larger > 1 else wanted_s
        sizes[larger] = Size(max(least_s, whole_s, _needed_s(larger * computing_s, waiting_s)), demo)
    shares = dict(GROWTHS[max(demos)])
    step_mean_s = sum(shares[larger] * size.seconds / larger for larger, size in sizes.items())
    return RoundChoice(rule, sizes, samples, step_mean_s / wanted_s)


def _needed_s(computing_s: float, waiting_s: float) -> float:
    """A round of `merged_muon` in which nodes wait for IDLE_PART at most. If they have trained their samples long
    before its end, one with room for twice the wait is enough."""
    return min(waiting_s / IDLE_PART, computing_s + waiting_s / TRANSFER_PART)


def nodes_max(demo: DemoSpec, nodes: int = 0) -> int:
    """The most nodes of a run: the default, or all that there are, or fewer where votes have many levels."""
    rounds = RoundSpec()
    return min(max(rounds.nodes_max, nodes), most_nodes(demo.largest_vote, rounds.weight_max))


def coordinator_step_s(rule: RuleSpec, facts: ModelFacts, swarm: SwarmFacts) -> float:
    """Seconds that the coordinator's replica takes for a step, beside applying an update."""
    return rule.step_flops(facts.parameters) / (swarm.coordinator_cores * CORE_FLOAT64_FLOPS)


def step_s(rule: RuleSpec, facts: ModelFacts, swarm: SwarmFacts) -> float:
    """Seconds that a node's replica takes for a step, beside applying an update."""
    trains = swarm.tokens_s * facts.flops_a_token
    part = CARD_FLOAT64_PART if trains >= CARD_FLOPS else CPU_FLOAT64_PART
    return rule.step_flops(facts.parameters) / (trains * part)


def _local_muon(facts: ModelFacts, swarm: SwarmFacts, amount: Amount, steps: LocalSteps) -> RoundChoice:
    """A round of LOCAL_STEPS steps, and of more only where there are rounds enough."""
    demo = DemoSpec.model_validate(steps.rule.DEMO_DEFAULTS)
    round_s = max(_wanted_s(ROOM_FOR_STEPS * steps.seconds), transfer_s(facts, demo, swarm) / TRANSFER_PART)
    most = math.inf if amount.rounds else amount.tokens / (LOCAL_ROUNDS_MIN * swarm.nodes * facts.context)
    least = LOCAL_STEPS * steps.rule.micro_batch
    samples = max(min(most, LEASE_ROUNDS * least) // LEASE_ROUNDS, math.ceil(least / LEASE_ROUNDS))
    return RoundChoice(steps.rule, {1: Size(round_s, demo)}, samples)


def _wanted_s(computing_s: float) -> float:
    return min(max(computing_s, ROUND_S_MIN), ROUND_S_MAX)
