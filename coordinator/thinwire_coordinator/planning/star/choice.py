"""Chooses what nodes do with gradients, and the `demo` and the round that go with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from thinwire_coordinator.planning.facts import ModelFacts, SwarmFacts
from thinwire_coordinator.planning.plan import micro_batch_for
from thinwire_coordinator.planning.settings import MANY_NODES, MORE_PASSES_MAX, check_muon, known_batch, suits_muon
from thinwire_coordinator.planning.star.traffic import transfer_s
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

DEMO, LOCAL_MUON, MERGED_MUON = DemoRuleSpec().kind, LocalMuonSpec().kind, MergedMuonSpec().kind
BUDGETS = tuple(DemoSpec(k=k, update_topk=kept) for k, kept in ((96, 320), (44, 352), (44, 176), (22, 176), (22, 88)))
"""Settings of [demo], from the most bytes to the fewest."""
NARROW_PADDING_MIN = 0.5
"""In tiles that are emptier than this, such as those of an adapter, k is a share of what is in them."""
LOCAL_STEPS, LOCAL_ROUNDS_MIN = 4, 256
"""Of Muon in a round, and rounds, as in docs/convergence. With fewer rounds, local steps learn less."""
TRANSFER_PART = 0.5
"""The part of a round that upload and download may take, so that a slower link than predicted still delivers."""
STRETCH_MAX = 2.0
"""A round may be longer than the batch wants by this factor. Beyond it, nodes send less."""
MERGED_STRETCH_MAX = 1.5
"""A round of `merged_muon` may be longer by this factor. To the same loss, `demo` needs so many times its tokens, with
18.9 for each parameter (docs/convergence)."""
ROOM_FOR_STEPS = 1.25
"""A round is so many times as long as its local steps take. A node makes its micro-batches smaller where they take more
than a quarter of a round."""
IDLE_PART = 0.25
"""The part of a round in which nodes with `merged_muon` may wait: for its transfers, and for the step. Others train
meanwhile."""
STEP_PART = 0.5
"""The part of a round that this step may take on the coordinator."""
COORDINATOR_FLOAT64_FLOPS = 26e9
"""Operations a second: half of what two cores train with (`facts.MACHINES`)."""
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
    """How much a run trains. tokens: of all nodes. rounds: if they are given, in place of tokens."""

    tokens: float
    rounds: int | None = None


@dataclass(frozen=True)
class RoundChoice:
    """rule, demo: sections of the run. round_s: the length of a round. samples: of a node for its full weight."""

    rule: RuleSpec
    demo: DemoSpec
    round_s: float
    samples: float


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
    what suits them.

    Raises ConfigError if steps of Muon are asked for, and do not suit the model.
    """
    if kind in (LOCAL_MUON, MERGED_MUON):
        check_muon(facts, LocalMuonSpec(), instead=DEMO)
    kind = kind or kind_for(facts, swarm, amount, memory_bytes)
    if kind == LOCAL_MUON:
        return _local_muon(facts, swarm, amount, local_steps(facts, swarm, memory_bytes))
    return _merged_muon(facts, swarm) if kind == MERGED_MUON else _votes(facts, swarm)


def kind_for(facts: ModelFacts, swarm: SwarmFacts, amount: Amount, memory_bytes: float) -> str:
    """The kind of rule that suits, from what learns the most (docs/convergence): Muon of the merged gradients where
    links and machines have the time for it; for many nodes, local steps of Muon; else votes."""
    if not suits_muon(facts, LocalMuonSpec()):
        return DEMO
    wanted_s = _wanted_s(known_batch(facts.trained) / swarm.nodes / swarm.tokens_s)
    if _merged_muon(facts, swarm).round_s <= MERGED_STRETCH_MAX * wanted_s:
        return MERGED_MUON
    if swarm.nodes < MANY_NODES:
        return DEMO
    steps = local_steps(facts, swarm, memory_bytes)
    rounds = amount.rounds or amount.tokens / (LOCAL_STEPS * steps.tokens * swarm.nodes)
    is_best = (
        steps.more_passes <= MORE_PASSES_MAX
        and rounds >= LOCAL_ROUNDS_MIN
        and steps.seconds <= ROUND_S_MAX
        and _local_muon(facts, swarm, amount, steps).round_s <= STRETCH_MAX * _wanted_s(ROOM_FOR_STEPS * steps.seconds)
    )
    return LOCAL_MUON if is_best else DEMO


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
    return RoundChoice(DemoRuleSpec(), demo, max(wanted_s, needed_s), tokens / facts.context)


def _merged_muon(facts: ModelFacts, swarm: SwarmFacts) -> RoundChoice:
    """A round of the known batch that is long enough for its transfers, and for the step on every replica; with finer
    levels, if they do not lengthen it."""
    rule = MergedMuonSpec()
    demo, fine = map(DemoSpec.model_validate, (rule.DEMO_DEFAULTS, rule.FINE))
    tokens = known_batch(facts.trained) / swarm.nodes
    own_s = step_s(rule, facts, swarm)

    step_of_coordinator_s = rule.step_flops(facts.parameters) / COORDINATOR_FLOAT64_FLOPS
    round_s = max(_wanted_s(tokens / swarm.tokens_s), step_of_coordinator_s / STEP_PART)
    needed_s, needed_fine_s = ((transfer_s(facts, one, swarm) + own_s) / IDLE_PART for one in (demo, fine))
    if needed_fine_s <= round_s and swarm.nodes <= nodes_max(fine):
        return RoundChoice(rule, fine, round_s, tokens / facts.context)
    return RoundChoice(rule, demo, max(round_s, needed_s), tokens / facts.context)


def nodes_max(demo: DemoSpec) -> int:
    """The most nodes of a run: fewer than by default, where votes have many levels."""
    rounds = RoundSpec()
    return min(rounds.nodes_max, most_nodes(demo, rounds.weight_max))


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
    return RoundChoice(steps.rule, demo, round_s, samples)


def _wanted_s(computing_s: float) -> float:
    return min(max(computing_s, ROUND_S_MIN), ROUND_S_MAX)
