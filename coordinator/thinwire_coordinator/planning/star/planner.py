"""The figures, the words and the warnings of a run whose coordinator merges votes in rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from thinwire_common.units import human_bytes, human_count, human_seconds
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.planning.facts import ModelFacts, SwarmFacts
from thinwire_coordinator.planning.plan import Advice, Plan, Step, common_advice, in_stages
from thinwire_coordinator.planning.planned import AMEND
from thinwire_coordinator.planning.run_text import Key, Words, schedule_keys
from thinwire_coordinator.planning.settings import (
    SAMPLES_MAX,
    Wanted,
    known_batch,
    rate_for,
    rounded_s,
    schedule_for,
    suits_muon,
    tokens_for,
)
from thinwire_coordinator.planning.star import traffic
from thinwire_coordinator.planning.star.choice import (
    NARROW_PADDING_MIN,
    Amount,
    budgets,
    choice_for,
    coordinator_step_s,
    nodes_max,
    step_s,
)
from thinwire_coordinator.planning.star.growth import growing, orders_for
from thinwire_planner.methods.growth import GROWTHS, RATE_PART, mean_growth
from thinwire_planner.methods.star import DEMO, LOCAL_MUON, LOCAL_STEPS, MERGED_MUON, tokens_of
from thinwire_proto.contract import DemoSpec, LocalMuonSpec, MergedMuonSpec, RoundSpec, RunSpec
from thinwire_proto.errors import ConfigError

RULES: Sequence[str] = (DEMO, LOCAL_MUON, MERGED_MUON)
LENGTH_S_MAX = 86_400.0
"""A bound of the contract."""
SNAPSHOTS = 5
"""Snapshots that a coordinator keeps without `--keep` (docs/retention.md)."""
ROW_BYTES = 2048
SUM_BYTES_A_COMPONENT = 2
"""The merged votes, padding included."""
TRANSFER_PART_MAX = 0.5
WAITING_PART_MAX = 0.2
COMPUTING_PART_MIN = 0.75
"""The part of its time that a node should compute in a round. Below it, there is a warning."""
BARRIER_NODES_MAX = 8
K_FACTOR_MAX = 2
"""k of an adapter over what fits its rank: beyond it, there is a warning."""


def choose(wanted: Wanted) -> tuple[RunSpec, Sequence[Order]]:
    """The run for this model and these data. Raises ConfigError for more steps than a run can have, and for a rule that
    does not suit the model, or rounds that grow.

    The pace is the clock, because nodes of strangers differ in speed: a slow node then contributes less, and delays
    nobody.
    """
    facts, swarm = wanted.facts, wanted.swarm
    amount = Amount(tokens_for(wanted), wanted.steps, wanted.growth)
    chosen = choice_for(facts, swarm, amount, wanted.memory_bytes, wanted.rule)
    if (wanted.growth or 1) > 1 and chosen.rule.kind != MERGED_MUON:
        raise ConfigError(f"rounds that grow are known with {MERGED_MUON} alone; give --rule {MERGED_MUON} too")
    times = chosen.growth
    sizes = {
        larger: size._replace(seconds=rounded_s(min(max(size.seconds, facts.context / swarm.tokens_s), LENGTH_S_MAX)))
        for larger, size in chosen.sizes.items()
    }
    length_s = sizes[1].seconds
    fitting = length_s * swarm.tokens_s / facts.context
    most = nodes_max(chosen.demo, swarm.nodes)
    if swarm.nodes > most:
        raise ConfigError(f"a run with {chosen.rule.kind} has at most {most:,} nodes, and there are {swarm.nodes:,}")
    run = RunSpec(
        model=wanted.model,
        data=wanted.data,
        demo=chosen.first.demo,
        rule=chosen.rule,
        round=RoundSpec(
            pace="clock",
            length_ms=round(1000 * length_s),
            samples=min(max(1, round(min(fitting, chosen.samples))), SAMPLES_MAX),
            nodes_max=most,
            **chosen.rule.ROUND_DEFAULTS,
        ),
    )
    step = step_of(run, facts, swarm)
    schedule = schedule_for(wanted, run.rule, step.tokens * mean_growth(times))
    rate = float(f"{schedule.learning_rate * RATE_PART.get(times, 1.0):.2g}")
    run = run.model_copy(update={"schedule": schedule.model_copy(update={"learning_rate": rate})})
    if run.schedule.steps == 1:
        return run, ()  # no other size can follow
    return run.model_copy(update={"schedule": growing(run.schedule, GROWTHS[times])}), orders_for(run, sizes)


def step_of(run: RunSpec, facts: ModelFacts, swarm: SwarmFacts, micro_batch: int = 8) -> Step:
    """The cost of a round."""
    up = traffic.contribution_bytes(facts, run.demo) + traffic.OTHER_BYTES_A_ROUND
    update = traffic.update_bytes(facts, run.demo, swarm.nodes)
    down = update + traffic.OTHER_BYTES_A_ROUND
    transfer_s = 8 * up / swarm.up_bits_s + 8 * down / swarm.down_bits_s
    step_tokens = run.rule.micro_batch_max(micro_batch) * facts.context
    tokens_s = swarm.tokens_s / (1 + run.rule.more_passes(facts.parameters, step_tokens))
    own_step_s = step_s(run.rule, facts, swarm)
    node_tokens, round_s = _round(run.round, facts.context, tokens_s, transfer_s, own_step_s)
    of_steps = run.rule.MOMENT_BYTES_A_PARAMETER * facts.trained + run.rule.step_bytes(facts.parameters)
    return Step(
        seconds=round_s,
        computing_s=node_tokens / tokens_s,
        exchange_s=transfer_s,
        sent_bytes=up,
        received_bytes=down,
        tokens=node_tokens * swarm.nodes,
        uplink_bits_s=8 * down * swarm.nodes / round_s,
        memory_bytes=SUM_BYTES_A_COMPONENT * facts.components + of_steps,
        disk_bytes=update + ROW_BYTES,
        snapshots=SNAPSHOTS,
    )


def _round(
    rounds: RoundSpec, context: int, tokens_s: float, transfer_s: float, own_step_s: float
) -> tuple[float, float]:
    """(tokens of a node, seconds) of a round whose upload and download take `transfer_s`. own_step_s: in which a node's
    replica takes its step, and the node trains nothing."""
    if rounds.pace == "clock":
        waiting_s = own_step_s if rounds.base_age_max else transfer_s + own_step_s
        computing_s = max(0.0, rounds.length_s - waiting_s)
        return min(computing_s * tokens_s, rounds.lease_samples * context), rounds.length_s
    share = rounds.samples * context
    computing_s = share / tokens_s + own_step_s
    needed_s = max(computing_s, transfer_s) if rounds.base_age_max else computing_s + transfer_s
    return min(share, rounds.length_s * tokens_s), min(needed_s, rounds.length_s)


def words_of(plan: Plan) -> Words:
    waiting = [("computing", f"{_computing(plan)}; then a node waits")] if _waits(plan) else []
    if waiting and len(plan.stages) > 1:
        waiting.append(("at the end", _computing(plan.each[-1])))
    return Words("round", waiting, [], f"{plan.most(lambda one: one.step.uplink_bits_s) / 1e6:,.3g} Mbit/s on average")


def keys_of(plan: Plan) -> dict[str, list[Key]]:
    """The lines of the run file, by section, after model and data."""
    run, facts, rule = plan.run, plan.model, plan.run.rule
    measured = "measured" if facts.trained < 2_000_000 else "extended from smaller models"
    usual = f"for {human_count(facts.trained)} parameters, {measured}"
    if facts.frozen:
        usual = "usual for an adapter"
    elif facts.begins:
        usual = "a tenth of that from scratch, because the model begins from weights"
    rate = f"{' of the matrices' if rule.kind in (LOCAL_MUON, MERGED_MUON) else ''}; {usual}"
    transfer = f"{plan.step.exchange_s / plan.step.seconds:.0%} of it for the network"
    more = "; up to 3 times as many are used" if run.round.base_age_max else ""
    found: dict[str, list[Key]] = {
        "schedule": schedule_keys(plan, steps="", rate=rate),
        "round": [
            ("pace", run.round.pace, "a slow node contributes less, and delays nobody"),
            ("length_ms", run.round.length_ms, transfer),
            ("samples", run.round.samples, f"of a node for its full weight{more}"),
        ],
    }
    nodes, by_default = run.round.nodes_max, RoundSpec().nodes_max
    if nodes != by_default:
        why = "as many as there are" if nodes > by_default else "the most with so many levels"
        found["round"].append(("nodes_max", nodes, why))
    if isinstance(rule, LocalMuonSpec):
        steps = math.ceil(plan.step.tokens / plan.swarm.nodes / facts.context / rule.micro_batch)
        sent = "a node takes local steps of Muon, and sends the sign of each component of their sum"
        micro_batch = ("micro_batch", rule.micro_batch, f"samples of a local step: {steps} steps a round")
        return found | {"rule": [("kind", rule.kind, sent), micro_batch]}
    if rule.kind == MERGED_MUON:
        sent = "nodes send gradients in a few levels, and every replica takes the same step of Muon on their mean"
        found["rule"] = [("kind", rule.kind, sent)]
        if run.demo != DemoSpec.model_validate(MergedMuonSpec.DEMO_DEFAULTS):
            found["demo"] = _level_keys(plan)
        return found
    kept = [("update_topk", run.demo.update_topk, "the strongest that an update keeps")] if run.demo.update_topk else []
    return found | {"demo": [("k", run.demo.k, "components of each tile of 4,096; fewer are fewer bytes"), *kept]}


def _level_keys(plan: Plan) -> list[Key]:
    demo = plan.run.demo
    bits = 8 * plan.step.sent_bytes / plan.model.components
    return [
        ("vote_levels", demo.vote_levels, f"to either side of 0: {bits:.2g} bits a component; fewer need more tokens"),
        ("vote_step", demo.vote_step, "of two levels, in standard deviations; larger ones are fewer bytes"),
        ("update_levels", demo.update_levels, "of the sum, to either side of 0"),
    ]


def advise(plan: Plan, given: Iterable[tuple[str, ...]] = ()) -> list[Advice]:
    """All warnings about a run with rounds."""
    of_stages = [[*common_advice(one), *_link(one), *_speed(one), *_narrow(one)] for one in plan.each]
    return [*in_stages(of_stages), *_waiting(plan), *_many_nodes(plan)]


def _link(plan: Plan) -> Iterator[Advice]:
    step, swarm, rounds = plan.step, plan.swarm, plan.run.round
    upload_s = 8 * step.sent_bytes / swarm.up_bits_s
    fewer = "" if plan.run.demo.sends_whole_tiles else " or a smaller demo.k"  # where all travel, fewer take more bytes
    both = (
        f"{human_bytes(step.sent_bytes)} at {swarm.up_bits_s / 1e6:g} Mbit/s: {human_seconds(upload_s)}; "
        f"{human_bytes(step.received_bytes)} down at {swarm.down_bits_s / 1e6:g} Mbit/s: "
        f"{human_seconds(step.exchange_s - upload_s)}"
    )
    if upload_s >= rounds.length_s:
        yield Advice(
            "round.length_ms",
            f"a round of {human_seconds(rounds.length_s)} is shorter than its upload ({both}). No contribution "
            f"would arrive in time; give a longer round{fewer}",
        )
    elif step.exchange_s > TRANSFER_PART_MAX * rounds.length_s:
        yield Advice(
            "round.length_ms",
            f"a round of {human_seconds(rounds.length_s)} leaves little room for its transfers ({both}). A "
            f"link that is slower for a moment misses the round; give a longer round{fewer}",
        )
    may_be_older = "base_age_max" not in plan.run.rule.ROUND_DEFAULTS
    if may_be_older and not rounds.base_age_max and step.exchange_s > WAITING_PART_MAX * step.seconds:
        yield Advice(
            "round.base_age_max",
            f"nodes wait for the network for {step.exchange_s / step.seconds:.0%} of each round ({both}). "
            "With base_age_max = 1 they train meanwhile",
        )


def _speed(plan: Plan) -> Iterator[Advice]:
    rounds, swarm = plan.run.round, plan.swarm
    sample_s = plan.model.context / swarm.tokens_s
    length = human_seconds(rounds.length_s)
    if sample_s > rounds.length_s:
        yield Advice(
            "round.length_ms",
            f"a node of {swarm.tokens_s:,.0f} tokens/s needs {human_seconds(sample_s)} for one sample of "
            f"{plan.model.context} tokens, and a round lasts {length}: it could not contribute",
        )
    own_s = coordinator_step_s(plan.run.rule, plan.model, swarm)
    if own_s > rounds.length_s:
        cores = f"{swarm.coordinator_cores} core{'' if swarm.coordinator_cores == 1 else 's'}"
        yield Advice(
            "round.length_ms",
            f"the coordinator's own step takes {human_seconds(own_s)} on {cores}, and a round lasts {length}: rounds "
            "would wait for it; give a longer round, or a coordinator with more cores (--coordinator-cores)",
        )
    if rounds.pace == "barrier" and swarm.nodes > BARRIER_NODES_MAX:
        yield Advice(
            "round.pace",
            f'with pace = "barrier", every round waits for the slowest of {swarm.nodes} nodes, up to {length}; with '
            '"clock" a slow node contributes less and delays nobody',
        )


def _waiting(plan: Plan) -> Iterator[Advice]:
    """Nodes use up their samples early in a round. `choose` leaves it so: tokens of a larger batch than the known one
    teach less, and machines that are busy for a moment miss a round that is shorter than ROUND_S_MIN."""
    whole, plan = plan, plan.each[-1]
    if not _waits(plan):
        return
    key, when = ("round.samples", "") if len(whole.stages) == 1 else (AMEND, "at the end, ")
    rounds, step, trained = plan.run.round, plan.step, plan.model.trained
    longer = _own_s(plan) / step.computing_s
    samples = min(math.ceil(longer * rounds.samples), SAMPLES_MAX)
    tokens = step.tokens * samples / rounds.samples
    shorter = ""
    if rounds.pace == "clock" and step.exchange_s < TRANSFER_PART_MAX * COMPUTING_PART_MIN * rounds.length_s:
        shorter = "; for machines that do nothing else, a shorter length_ms does too"
    yield Advice(
        key,
        f"{when}a node computes for {_computing(plan)}, and then waits, because it has used up its samples. samples = "
        f"{samples:,} uses the whole round, and a step is then {human_count(tokens)} tokens of all nodes. "
        f"{human_count(known_batch(trained))} suit {human_count(trained)} parameters, and in a larger step each token "
        f"teaches less. A larger model uses the time without that{shorter}{_local_steps(whole)}",
    )


def _local_steps(plan: Plan) -> str:
    """A sentence for nodes that wait with `merged_muon`, if they would reach a loss sooner by local steps."""
    if plan.run.rule.kind != MERGED_MUON or not suits_muon(plan.model, LocalMuonSpec()):
        return ""
    first, last, nodes = plan.stages[0], plan.stages[-1].run, plan.swarm.nodes
    local = choice_for(plan.model, plan.swarm, Amount(plan.tokens), plan.memory_bytes, LOCAL_MUON)
    tokens = tokens_of(MERGED_MUON, last.demo.vote_levels, nodes, last.round.samples // first.run.round.samples)
    merged_s = plan.seconds * first.step.tokens / plan.tokens
    share = local.tokens(nodes) * local.first.seconds / LOCAL_STEPS / (tokens * merged_s)
    if share >= 1:
        return ""
    return f". --rule {LOCAL_MUON} uses it for more steps: to a loss in about {share:.0%} of the time (docs/peers.md)"


def _waits(plan: Plan) -> bool:
    """Whether nodes compute for much less than their own time of a round."""
    return 0 < plan.step.computing_s < COMPUTING_PART_MIN * _own_s(plan)


def _own_s(plan: Plan) -> float:
    """The seconds of a round in which a node may compute: all but its own step, if it need not wait for the update."""
    waiting_s = 0 if plan.run.round.base_age_max else plan.step.exchange_s
    return plan.step.seconds - waiting_s - step_s(plan.run.rule, plan.model, plan.swarm)


def _computing(plan: Plan) -> str:
    """The part of a round that a node computes, in words."""
    step = plan.step
    part = step.computing_s / step.seconds
    share = f"{part:.0%}" if part >= 0.01 else "less than 1%"
    return f"{share} of a round, {human_seconds(step.computing_s)} of {human_seconds(step.seconds)}"


def _narrow(plan: Plan) -> Iterator[Advice]:
    """More components than the narrow tiles of an adapter have use for."""
    padding, demo = plan.model.padding, plan.run.demo
    fitting = budgets(padding)[0]
    if plan.model.frozen and padding >= NARROW_PADDING_MIN and demo.k > K_FACTOR_MAX * fitting.k:
        kept = "" if demo.magnitude == "tile" else f" and update_topk = {fitting.update_topk}"
        yield Advice(
            "demo.k",
            f"{padding:.0%} of the adapter's tiles is padding, so {demo.k} components a tile are a large share of its "
            f"parameters; the usual share is k = {fitting.k}{kept}",
        )


def _many_nodes(plan: Plan) -> Iterator[Advice]:
    better = choice_for(plan.model, plan.swarm, Amount(plan.tokens), plan.memory_bytes)
    rule, up = better.rule, traffic.contribution_bytes(plan.model, better.demo)
    if plan.run.rule.kind == DEMO != rule.kind:
        yield Advice(
            "rule.kind",
            f'these nodes learn more with kind = "{rule.kind}" (docs/local-rules.md). It needs a learning_rate of '
            f"about {rate_for(plan.model, rule):g} and its own [demo] and [round], and sends {human_bytes(up)} a round "
            f"in place of {human_bytes(plan.step.sent_bytes)}; init writes them for the same nodes and links",
        )
