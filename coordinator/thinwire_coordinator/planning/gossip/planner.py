"""The settings, figures, words and warnings of a run whose nodes step by themselves, by the model of the planner."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from thinwire_common.units import human_bytes
from thinwire_coordinator.gossip.deposits import DEPOSIT_BYTES_A_PARAMETER
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.planning.facts import ModelFacts, SwarmFacts
from thinwire_coordinator.planning.plan import Advice, Plan, Step, common_advice
from thinwire_coordinator.planning.run_text import Key, Words, schedule_keys
from thinwire_coordinator.planning.settings import (
    MORE_PASSES_MAX,
    SAMPLES_MAX,
    Wanted,
    check_muon,
    known_batch,
    rounded_s,
    schedule_for,
    suits_muon,
)
from thinwire_planner.choosing.plan import seconds_in_words
from thinwire_planner.methods.gossip import codec_of, gossip_variant
from thinwire_planner.methods.method import Forecast, Setting
from thinwire_planner.timing.compute import ComputeTimes
from thinwire_planner.timing.network import Network
from thinwire_proto.contract import WEIGHT_SUM_MAX, RoundSpec, RunSpec
from thinwire_proto.contract.exchanges.gossip import REPORT_BYTES, GossipSpec
from thinwire_proto.contract.rules.adamw import AdamWSpec
from thinwire_proto.contract.rules.muon import MuonSpec
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.edge import SNAPSHOTS_FIRST

ADAMW, MUON = AdamWSpec().kind, MuonSpec().kind
RULES: Sequence[str] = (ADAMW, MUON)
STEPS = {ADAMW: "AdamW", MUON: "Muon"}
MUON_NODES_MIN = 8
"""With fewer nodes, AdamW is chosen (docs/log/decentralized.md)."""
GRADIENT_PULL = 0.5
"""With steps of Muon and one bit a parameter. Four nodes with AdamW learn less by it (docs/log/decentralized.md)."""
VARIATION, COORDINATOR_RATE = 0.1, 1e9
"""Variation of a node's computing, and bits a second of the coordinator's own line, as of `thinwire plan`."""
SNAPSHOTS = 2
"""The first state, and the mean."""
NODES_MAX = 8192
"""The most that a contract allows."""
ITERATIONS = 400
"""Of the simulation behind a forecast."""
STRETCH_MAX = 4.0
"""An iteration may have so many times the samples that the batch wants, to be as long as its messages."""
BEAT_STEPS, BEAT_S_MIN, BEAT_S_MAX = 4, 10.0, 600.0
"""A beat is so many steps long, within these bounds."""
PATIENCE_STEPS, PATIENCE_S_MIN, PATIENCE_S_MAX = 4, 30.0, 3600.0
PATIENCE_STEPS_LEAST = 2
NODES_LEAST = 2
"""Nodes that the first topology waits for. `serve --wait-for` waits for more."""
NODES_MOST = WEIGHT_SUM_MAX // RoundSpec().weight_max
"""Nodes that round.nodes_max allows beside the default of round.weight_max."""
SPARE_NODES = 4
"""Nodes more than expected that may come. Each node makes sure of memory for edges to them."""
WITHOUT_EFFECT = {
    "demo": "no votes are sent: exchange.codec says what a message carries",
    "round.base_age_max": "exchange.slack says how many iterations a message may be late",
    "round.samples": "rule.samples says how many samples an iteration has",
    "round.weight_max": "no votes are weighed",
}
"""Sections and keys that a run of gossip does not read, and what to know instead."""


def choose(wanted: Wanted) -> tuple[RunSpec, Sequence[Order]]:
    """The run for this model and these data. Raises ConfigError for less than two nodes, for more than a run can have,
    for more steps than it can have, and for a rule that does not suit the model."""
    facts, swarm = wanted.facts, wanted.swarm
    if (wanted.growth or 1) > 1:
        raise ConfigError("--growth is for runs with rounds, and gossip has none; leave it out")
    if not NODES_LEAST <= swarm.nodes <= NODES_MOST:
        raise ConfigError(f"a run of gossip has {NODES_LEAST} to {NODES_MOST:,} nodes, and there are {swarm.nodes:,}")
    exchange = GossipSpec()
    of_batch = known_batch(facts.trained) / facts.context / swarm.nodes
    sample_s = facts.context / swarm.tokens_s
    message_s = dict(_forecast(exchange, facts, swarm, max(1.0, of_batch) * sample_s).parts)["message"]
    hidden = min(message_s / sample_s, STRETCH_MAX * of_batch)
    rule = rule_for(facts, swarm.nodes, min(max(1, round(max(of_batch, hidden))), SAMPLES_MAX), wanted.rule)
    step_s = _forecast(exchange, facts, swarm, _computing_s(rule, facts, swarm)).seconds
    beat_s = min(max(BEAT_STEPS * step_s, BEAT_S_MIN), BEAT_S_MAX)
    patience_s = min(max(PATIENCE_STEPS * step_s, PATIENCE_S_MIN), PATIENCE_S_MAX)
    pull = GRADIENT_PULL if rule.kind == MUON else 0.0
    run = RunSpec(
        model=wanted.model,
        data=wanted.data,
        schedule=schedule_for(wanted, rule, rule.samples * facts.context * swarm.nodes),
        round=RoundSpec(
            pace="clock",
            length_ms=round(1000 * rounded_s(beat_s)),
            min_contributions=NODES_LEAST,
            nodes_max=min(swarm.nodes + SPARE_NODES, NODES_MOST),
        ),
        rule=rule,
        exchange=exchange.model_copy(update={"patience_ms": 1000 * math.ceil(patience_s), "gradient_pull": pull}),
    )
    return run, ()


def rule_for(facts: ModelFacts, nodes: int, samples: int, kind: str | None = None) -> OwnStepsSpec:
    """The rule for iterations of so many samples. kind: by default Muon where it is known to learn more
    (docs/convergence), and costs little more time; else AdamW.

    Raises ConfigError if steps of Muon are asked for, and do not suit the model.
    """
    muon = MuonSpec(samples=samples)
    if kind == MUON:
        check_muon(facts, muon, instead=ADAMW)
    elif kind is None:
        costs_little = muon.more_passes(facts.parameters, samples * facts.context) <= MORE_PASSES_MAX
        kind = MUON if nodes >= MUON_NODES_MIN and suits_muon(facts, muon) and costs_little else ADAMW
    return muon if kind == MUON else AdamWSpec(samples=samples)


def step_of(run: RunSpec, facts: ModelFacts, swarm: SwarmFacts, micro_batch: int = 8) -> Step:
    """The cost of an iteration of each node. Raises ConfigError if the topology or a run cannot have so many nodes."""
    exchange, rule = _sections(run)
    if swarm.nodes > NODES_MAX:
        raise ConfigError(f"a run has at most {NODES_MAX:,} nodes (round.nodes_max), and there are {swarm.nodes:,}")
    found = _forecast(exchange, facts, swarm, _computing_s(rule, facts, swarm))
    parts = dict(found.parts)
    sent_bytes = found.bytes_a_parameter * facts.trained / 2
    return Step(
        seconds=found.seconds,
        computing_s=parts["computing"],
        exchange_s=parts["message"],
        sent_bytes=sent_bytes,
        received_bytes=sent_bytes,
        tokens=float(rule.samples * facts.context * swarm.nodes),
        uplink_bits_s=8 * sent_bytes * swarm.nodes / found.seconds,
        memory_bytes=DEPOSIT_BYTES_A_PARAMETER * facts.trained,
        disk_bytes=found.seconds / run.round.length_s * swarm.nodes * REPORT_BYTES,
        snapshots=SNAPSHOTS,
    )


def _sections(run: RunSpec) -> tuple[GossipSpec, OwnStepsSpec]:
    assert isinstance(run.exchange, GossipSpec)  # what a run file of another kind never reaches
    assert isinstance(run.rule, OwnStepsSpec)
    return run.exchange, run.rule


def _computing_s(rule: OwnStepsSpec, facts: ModelFacts, swarm: SwarmFacts) -> float:
    """Seconds of an iteration of a node, without the exchange."""
    tokens = rule.samples * facts.context
    return (1 + rule.more_passes(facts.parameters, tokens)) * tokens / swarm.tokens_s


def _forecast(exchange: GossipSpec, facts: ModelFacts, swarm: SwarmFacts, computing_s: float) -> Forecast:
    """What the planner says of an iteration whose computing takes a node so long."""
    setting = Setting(
        parameters=facts.trained,
        compute=ComputeTimes.around(computing_s, VARIATION),
        network=Network.uniform(swarm.nodes, swarm.up_bits_s, swarm.rtt_s, down_bits_s=swarm.down_bits_s),
        speeds=(1.0,) * swarm.nodes,
        coordinator_up_bits_s=COORDINATOR_RATE,
        coordinator_down_bits_s=COORDINATOR_RATE,
        iterations_max=ITERATIONS,
    )
    return gossip_variant(exchange.topology, codec_of(exchange.codec), slack=exchange.slack).forecast(setting)


def words_of(plan: Plan) -> Words:
    exchange, step = _sections(plan.run)[0], plan.step
    computing, message = seconds_in_words(step.computing_s), seconds_in_words(step.exchange_s)
    new_peer = human_bytes(2 * SNAPSHOTS_FIRST * 4.0 * plan.model.trained)
    return Words(
        "step",
        [
            ("exchange", f"gossip, {exchange.topology}, codec {exchange.codec}"),
            ("", f"computing {computing}, and a message beside it {message}"),
        ],
        [("a new peer", f"{new_peer} up and down, once, for a node that joins late or was away")],
        f"{step.uplink_bits_s / 1e6:,.3g} Mbit/s if no node listens for peers (--peers); memory for the relay: 128 MiB",
    )


def keys_of(plan: Plan) -> dict[str, list[Key]]:
    """The lines of the run file, by section, after model and data."""
    run, (exchange, rule) = plan.run, _sections(plan.run)
    steps = STEPS.get(rule.kind, rule.kind)
    of_message = f"{plan.step.both_ways_bytes / plan.model.trained:.3g} bytes a parameter and step, up and down"
    return {
        "schedule": schedule_keys(plan, steps="iterations of each node; ", rate=f", of {steps}"),
        "round": [
            ("pace", run.round.pace, "beats follow a clock"),
            ("length_ms", run.round.length_ms, "a beat: each node reports once"),
            ("min_contributions", run.round.min_contributions, "nodes that the first topology waits for"),
            ("nodes_max", run.round.nodes_max, "a node needs memory for edges to so many"),
        ],
        "rule": [
            ("kind", rule.kind, f"each node steps by itself, with {steps}"),
            ("samples", rule.samples, "of a node in an iteration"),
        ],
        "exchange": [
            ("kind", exchange.kind, "no merging coordinator; for nodes that trust each other"),
            ("topology", exchange.topology, "who mixes with whom"),
            ("codec", exchange.codec, of_message),
            ("gradient_pull", exchange.gradient_pull, "gradients are computed so far towards the peers; costs no byte"),
            ("patience_ms", exchange.patience_ms, "for a peer's message; then the peer is left out"),
        ],
    }


def advise(plan: Plan, given: Iterable[tuple[str, ...]] = ()) -> list[Advice]:
    """All warnings about a run of gossip."""
    return [*common_advice(plan), *_exchange(plan), *_without_effect(given)]


def _exchange(plan: Plan) -> Iterator[Advice]:
    exchange, step = _sections(plan.run)[0], plan.step
    if step.exchange_s > step.computing_s:
        yield Advice(
            "exchange.codec",
            f"a message takes {seconds_in_words(step.exchange_s)} at {plan.swarm.up_bits_s / 1e6:g} Mbit/s, and the "
            f"computing beside it {seconds_in_words(step.computing_s)}, so nodes wait; more samples in an iteration "
            '(rule.samples) exchange less often, and the codec "sign" needs one bit a parameter',
        )
    if exchange.patience_ms < 1000 * PATIENCE_STEPS_LEAST * step.seconds:
        yield Advice(
            "exchange.patience_ms",
            f"{seconds_in_words(exchange.patience_ms / 1000)} is less than {PATIENCE_STEPS_LEAST} steps of "
            f"{seconds_in_words(step.seconds)}, so peers that are only slow are left out; give more, or shorter steps",
        )


def _without_effect(given: Iterable[tuple[str, ...]]) -> Iterator[Advice]:
    for path in given:
        key = ".".join(path)
        if key in WITHOUT_EFFECT:
            yield Advice(key, f"has no effect in gossip, because {WITHOUT_EFFECT[key]}; remove it")
