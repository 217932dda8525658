"""Warns of what will be slow or unwise in a run, with figures. Every rule is one function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from thinwire_common.units import human_bytes, human_count, human_seconds
from thinwire_coordinator.planning.choice import rate_for
from thinwire_coordinator.planning.facts import DataFacts, ModelFacts, SwarmFacts
from thinwire_coordinator.planning.forecast import Forecast, forecast
from thinwire_coordinator.planning.gossip_plan import GossipPlan
from thinwire_coordinator.planning.memory import DEFAULT_MICRO_BATCH, micro_batch_for, node_bytes
from thinwire_coordinator.planning.rule_choice import DEMO, LOCAL_MUON, Amount, kind_for
from thinwire_coordinator.planning.settings import (
    NARROW_PADDING_MIN,
    PASSES_MAX,
    TOKENS_A_PARAMETER,
    budgets,
)
from thinwire_coordinator.planning.traffic import update_bytes
from thinwire_proto.contract import TILE_EDGE, LocalMuonSpec, RunSpec

PADDING_MAX = 0.05
TRANSFER_PART_MAX = 0.5
RATE_FACTOR_MAX = 3.0
VOLUME_MAX = 1e12
"""Bytes that providers often allow in a month."""
LONG_RUN_SECONDS = 60 * 86_400.0
BARRIER_NODES_MAX = 8
WARMUP_PART_MAX = 0.2
K_FACTOR_MAX = 2
"""k of an adapter over what fits its rank: beyond it, there is a warning."""
LEVELS_FACTOR_MAX = 1.2
SPARE_VOCABULARY_MAX = TILE_EDGE
FEW_TOKENS_A_PARAMETER = 2
ROUND_S_TOO_LONG = 3_600.0


@dataclass(frozen=True)
class Advice:
    """A warning. key: the dotted key that it is about; empty if it is about no single one."""

    key: str
    text: str


@dataclass(frozen=True)
class Plan:
    """Everything that the rules look at. run: completed. memory_bytes: of one node's machine."""

    run: RunSpec
    model: ModelFacts
    data: DataFacts
    swarm: SwarmFacts
    figures: Forecast
    memory_bytes: float
    micro_batch: int


AnyPlan = Plan | GossipPlan


def plan_of(run: RunSpec, model: ModelFacts, data: DataFacts, swarm: SwarmFacts, memory_bytes: float) -> Plan:
    """The plan of a run, with the largest micro-batch that fits into a node's memory."""
    micro_batch = micro_batch_for(run, model, memory_bytes)
    figures = forecast(run, model, data, swarm, micro_batch)
    return Plan(run, model, data, swarm, figures, memory_bytes, micro_batch)


def advise(plan: Plan) -> list[Advice]:
    """All warnings about a run with rounds. `gossip_advice` has those without a centre."""
    return [advice for rule in RULES for advice in rule(plan)]


def _padding(plan: AnyPlan) -> Iterator[Advice]:
    if plan.model.padding > PADDING_MAX and not plan.model.frozen:  # an adapter is narrow, and small
        yield Advice(
            "model",
            f"{plan.model.padding:.0%} of the tiles is padding, which costs memory and time but learns nothing; give "
            f"matrices sides that are multiples of {TILE_EDGE}, such as width, hidden and vocabulary",
        )


def _or_fewer(run: RunSpec) -> str:
    """Sending fewer components, as another way; not where all travel with a bit each, because some take more."""
    return "" if run.demo.sends_whole_tiles else " or a smaller demo.k"


def _levels(plan: Plan) -> Iterator[Advice]:
    """An update in levels has all components, which is more bytes if few were voted on."""
    demo, nodes = plan.run.demo, plan.swarm.nodes
    if demo.update_levels and not demo.sends_whole_tiles:
        with_levels = update_bytes(plan.model, demo, nodes)
        without = update_bytes(plan.model, demo.model_copy(update={"update_levels": 0}), nodes)
        if with_levels > LEVELS_FACTOR_MAX * without:
            yield Advice(
                "demo.update_levels",
                f"an update has about {human_bytes(with_levels)}, and {human_bytes(without)} with update_levels = 0, "
                f"because {nodes} nodes vote on few components with k = {demo.k}",
            )


def _link(plan: Plan) -> Iterator[Advice]:
    figures, swarm, rounds = plan.figures, plan.swarm, plan.run.round
    up = f"{human_bytes(figures.upload_bytes)} at {swarm.up_bits_s / 1e6:g} Mbit/s: {human_seconds(figures.upload_s)}"
    down = (
        f"{human_bytes(figures.download_bytes)} down at {swarm.down_bits_s / 1e6:g} Mbit/s: "
        f"{human_seconds(figures.download_s)}"
    )
    if figures.upload_s >= rounds.length_s:
        yield Advice(
            "round.length_ms",
            f"a round of {human_seconds(rounds.length_s)} is shorter than its upload ({up}). No contribution "
            f"would arrive in time; give a longer round{_or_fewer(plan.run)}",
        )
    elif figures.transfer_s > TRANSFER_PART_MAX * rounds.length_s:
        yield Advice(
            "round.length_ms",
            f"a round of {human_seconds(rounds.length_s)} leaves little room for its transfers ({up}; {down}). A "
            f"link that is slower for a moment misses the round; give a longer round{_or_fewer(plan.run)}",
        )
    if not rounds.base_age_max and figures.transfer_s > 0.2 * figures.round_s:
        yield Advice(
            "round.base_age_max",
            f"nodes wait for the network for {figures.transfer_s / figures.round_s:.0%} of each round ({up}; {down}). "
            "With base_age_max = 1 they train meanwhile",
        )


def _volume(plan: Plan) -> Iterator[Advice]:
    figures = plan.figures
    volume = min(figures.run_bytes, figures.bytes_a_month)
    if volume > VOLUME_MAX:
        yield Advice(
            "round.length_ms",
            f"a node that runs all the time sends and receives {human_bytes(volume)} a month, and some home links "
            f"allow {human_bytes(VOLUME_MAX)}; a longer round with more samples{_or_fewer(plan.run)} takes less",
        )


def _memory(plan: AnyPlan) -> Iterator[Advice]:
    needed = plan.figures.node_memory_bytes
    if needed > plan.memory_bytes:
        yield Advice(
            "model",
            f"a node needs about {human_bytes(needed)} of memory even with --micro-batch {plan.micro_batch}, and the "
            f"machine has {human_bytes(plan.memory_bytes)}; choose a smaller model or context, or larger machines",
        )
    elif plan.micro_batch < DEFAULT_MICRO_BATCH:
        default = node_bytes(plan.run, plan.model, DEFAULT_MICRO_BATCH)
        yield Advice(
            "model",
            f"a node needs about {human_bytes(default)} of memory by default, and the machine has "
            f"{human_bytes(plan.memory_bytes)}; volunteers start it with --micro-batch {plan.micro_batch}, which needs "
            f"{human_bytes(needed)}",
        )


def _narrow(plan: Plan) -> Iterator[Advice]:
    """More components than the narrow tiles of an adapter have use for."""
    padding, given = plan.model.padding, plan.run.demo
    if not plan.model.frozen or padding < NARROW_PADDING_MIN:
        return
    fitting = budgets(padding)[0]
    if given.k > K_FACTOR_MAX * fitting.k:
        kept = "" if given.magnitude == "tile" else f" and update_topk = {fitting.update_topk}"
        yield Advice(
            "demo.k",
            f"{padding:.0%} of the adapter's tiles is padding, so {given.k} components a tile are a large share of its "
            f"parameters; the usual share is k = {fitting.k}{kept}",
        )


def _rate(plan: AnyPlan) -> Iterator[Advice]:
    if plan.model.frozen or plan.model.begins:
        return  # other rates suit a model that is fine-tuned
    given, known = plan.run.schedule.learning_rate, rate_for(plan.model, plan.run.rule)
    if not known / RATE_FACTOR_MAX <= given <= known * RATE_FACTOR_MAX:
        factor = f"{given / known:.3g} times" if given > known else f"a {known / given:.3g}th of"
        yield Advice(
            "schedule.learning_rate",
            f"{given:g} is {factor} what is known to work for {human_count(plan.model.trained)} parameters: {known:g}",
        )


def _many_nodes(plan: Plan) -> Iterator[Advice]:
    amount = Amount(plan.figures.tokens)
    if plan.run.rule.kind == DEMO and kind_for(plan.model, plan.swarm, amount, plan.memory_bytes) == LOCAL_MUON:
        yield Advice(
            "rule.kind",
            f'{plan.swarm.nodes} nodes learn more with kind = "{LOCAL_MUON}" (docs/local-rules.md). It needs a '
            f"learning_rate of about {rate_for(plan.model, LocalMuonSpec()):g} and its own [demo] and [round]; init "
            "writes them for the same nodes and links",
        )


def _rule(plan: AnyPlan) -> Iterator[Advice]:
    for key, why in plan.run.rule.doubts(plan.model.parameters, plan.run.model.vocabulary):
        yield Advice(key, why)


def _duration(plan: AnyPlan) -> Iterator[Advice]:
    if plan.figures.run_s > LONG_RUN_SECONDS:
        yield Advice(
            "schedule.steps",
            f"{plan.run.schedule.steps:,} steps take about {human_seconds(plan.figures.run_s)} with {plan.swarm.nodes} "
            f"nodes of {plan.swarm.tokens_s:,.0f} tokens/s; choose a smaller model, fewer steps or more nodes",
        )
    if plan.run.round.length_s > ROUND_S_TOO_LONG and plan.run.round.pace == "clock":
        yield Advice(
            "round.length_ms", f"a round lasts {human_seconds(plan.run.round.length_s)}; a newcomer waits as long"
        )


def _vocabulary(plan: AnyPlan) -> Iterator[Advice]:
    spare = plan.run.model.vocabulary - plan.data.vocabulary if plan.data.vocabulary else 0
    if spare > SPARE_VOCABULARY_MAX:
        enough = -(-plan.data.vocabulary // TILE_EDGE) * TILE_EDGE
        yield Advice(
            "model.vocabulary",
            f"the data have {plan.data.vocabulary:,} different tokens, so {spare:,} rows of the embedding are never "
            f"used; {enough:,} is enough",
        )


def _data(plan: AnyPlan) -> Iterator[Advice]:
    if plan.figures.passes > PASSES_MAX:
        yield Advice(
            "schedule.steps",
            f"the run passes over the data {plan.figures.passes:.1f} times: {human_count(plan.figures.tokens)} tokens "
            f"of {human_count(plan.data.all_tokens)}. More than {PASSES_MAX} passes teach little; give more text or "
            "fewer steps",
        )


def _mixture(plan: AnyPlan) -> Iterator[Advice]:
    if plan.data.unused:
        yield Advice(
            "data.weights",
            f"no weight for {', '.join(plan.data.unused)}: nobody trains on it. If that is meant, all is well",
        )


def _tokens(plan: AnyPlan) -> Iterator[Advice]:
    facts, tokens = plan.model, plan.figures.tokens
    if facts.frozen or facts.begins:
        return
    more = "text" if 1.1 * plan.figures.passes > PASSES_MAX else "text and steps"
    if tokens < FEW_TOKENS_A_PARAMETER * facts.trained:
        yield Advice(
            "schedule.steps",
            f"{human_count(tokens)} tokens are few for {human_count(facts.trained)} parameters; "
            f"{TOKENS_A_PARAMETER} for each make the most of its size. Choose a smaller model, or more {more}",
        )


def _nodes(plan: Plan) -> Iterator[Advice]:
    run, nodes = plan.run, plan.swarm.nodes
    if run.round.pace == "barrier" and nodes > BARRIER_NODES_MAX:
        yield Advice(
            "round.pace",
            f'with pace = "barrier", every round waits for the slowest of {nodes} nodes, up to '
            f'{human_seconds(run.round.length_s)}; with "clock" a slow node contributes less and delays nobody',
        )
    if nodes < run.round.min_contributions:
        yield Advice(
            "round.min_contributions",
            f"a round needs {run.round.min_contributions} contributions, and there are {nodes} nodes: all are void",
        )
    if nodes > run.round.nodes_max:
        yield Advice("round.nodes_max", f"only {run.round.nodes_max} of {nodes} nodes may take part")


def _schedule(plan: AnyPlan) -> Iterator[Advice]:
    schedule = plan.run.schedule
    if schedule.warmup_steps > WARMUP_PART_MAX * schedule.steps:
        yield Advice(
            "schedule.warmup_steps",
            f"the warm-up takes {schedule.warmup_steps} of {schedule.steps} steps; a twentieth to a fifth is usual",
        )


def _speed(plan: Plan) -> Iterator[Advice]:
    rounds, swarm = plan.run.round, plan.swarm
    sample_s = plan.model.context / swarm.tokens_s
    if sample_s > rounds.length_s:
        yield Advice(
            "round.length_ms",
            f"a node of {swarm.tokens_s:,.0f} tokens/s needs {human_seconds(sample_s)} for one sample of "
            f"{plan.model.context} tokens, and a round lasts {human_seconds(rounds.length_s)}: it could not contribute",
        )
    elif rounds.pace == "barrier" and rounds.samples * sample_s > rounds.length_s:
        yield Advice(
            "round.samples",
            f"a node of {swarm.tokens_s:,.0f} tokens/s needs {human_seconds(rounds.samples * sample_s)} for its share "
            f"of {rounds.samples} samples, and a round lasts at most {human_seconds(rounds.length_s)}",
        )


RULES: tuple[Callable[[Plan], Iterator[Advice]], ...] = (
    _padding,
    _levels,
    _link,
    _volume,
    _narrow,
    _memory,
    _rate,
    _rule,
    _many_nodes,
    _duration,
    _vocabulary,
    _data,
    _mixture,
    _tokens,
    _nodes,
    _schedule,
    _speed,
)
RULES_OF_ANY_EXCHANGE: tuple[Callable[[AnyPlan], Iterator[Advice]], ...] = (
    _padding,
    _memory,
    _rate,
    _rule,
    _duration,
    _vocabulary,
    _data,
    _mixture,
    _tokens,
    _schedule,
)
"""Those that do not look at the figures of rounds, which a run without a centre does not have."""
