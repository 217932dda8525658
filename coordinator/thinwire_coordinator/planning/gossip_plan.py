"""A planned run without a centre, and the settings that `init` chooses for one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from thinwire_coordinator.planning.choice import SAMPLES_MAX, rate_for, rounded_s, steps_for, tokens_for
from thinwire_coordinator.planning.facts import DataFacts, ModelFacts, SwarmFacts
from thinwire_coordinator.planning.gossip_forecast import (
    GossipForecast,
    computing_s,
    gossip_forecast,
    setting_of,
    variant_of,
)
from thinwire_coordinator.planning.memory import micro_batch_for
from thinwire_coordinator.planning.own_rule_choice import MUON, own_rule
from thinwire_coordinator.planning.settings import GRADIENT_PULL, known_batch, warmup_steps
from thinwire_coordinator.planning.star_beside import StarBeside, star_beside
from thinwire_proto.contract import WEIGHT_SUM_MAX, DataSpec, ModelSpec, RoundSpec, RunSpec, ScheduleSpec
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.errors import ConfigError

STRETCH_MAX = 4.0
"""An iteration may have so many times the samples that the batch wants, to be as long as its messages."""
BEAT_STEPS, BEAT_S_MIN, BEAT_S_MAX = 4, 10.0, 600.0
"""A beat is so many steps long, within these bounds."""
PATIENCE_STEPS, PATIENCE_S_MIN, PATIENCE_S_MAX = 4, 30.0, 3600.0
NODES_LEAST = 2
"""Nodes that the first topology waits for. `serve --wait-for` waits for more."""
NODES_MOST = WEIGHT_SUM_MAX // RoundSpec().weight_max
"""Nodes that round.nodes_max allows beside the default of round.weight_max."""
SPARE_NODES = 4
"""Nodes more than expected that may come. Each node makes sure of memory for edges to them."""


@dataclass(frozen=True)
class GossipPlan:
    """Everything that the rules look at. run: completed. memory_bytes: of one node's machine."""

    run: RunSpec
    model: ModelFacts
    data: DataFacts
    swarm: SwarmFacts
    figures: GossipForecast
    star: StarBeside
    memory_bytes: float
    micro_batch: int


def gossip_plan_of(
    run: RunSpec, model: ModelFacts, data: DataFacts, swarm: SwarmFacts, memory_bytes: float
) -> GossipPlan:
    """The plan of a run, with the largest micro-batch that fits into a node's memory. Raises ConfigError if its
    topology cannot join so many nodes."""
    micro_batch = micro_batch_for(run, model, memory_bytes)
    figures = gossip_forecast(run, model, data, swarm, micro_batch)
    star = star_beside(run, model, data, swarm, memory_bytes, figures)
    return GossipPlan(run, model, data, swarm, figures, star, memory_bytes, micro_batch)


def choose_gossip(
    model: ModelSpec,
    data: DataSpec,
    facts: ModelFacts,
    sizes: DataFacts,
    swarm: SwarmFacts,
    *,
    rule: str | None = None,
    tokens: float | None = None,
    steps: int | None = None,
) -> RunSpec:
    """The run without a centre for this model and these data. rule: its kind; by default what suits the model. tokens,
    steps: how long it trains.

    Raises ConfigError for less than two nodes, for more than a run can have, for more steps than it can have, and for a
    rule that does not suit the model."""
    if swarm.nodes > NODES_MOST:
        raise ConfigError(f"a run without a centre has at most {NODES_MOST:,} nodes, and there are {swarm.nodes:,}")
    if swarm.nodes < NODES_LEAST:
        raise ConfigError(f"a run without a centre needs {NODES_LEAST} nodes or more, and there are {swarm.nodes}")
    exchange = GossipSpec()
    wanted = known_batch(facts.trained) / facts.context / swarm.nodes
    sample_s = facts.context / swarm.tokens_s
    forecast = variant_of(exchange).forecast(setting_of(facts, swarm, max(1.0, wanted) * sample_s))
    hidden = min(dict(forecast.parts)["message"] / sample_s, STRETCH_MAX * wanted)
    samples = min(max(1, round(max(wanted, hidden))), SAMPLES_MAX)
    chosen = own_rule(facts, swarm.nodes, samples, rule)
    step_s = variant_of(exchange).forecast(setting_of(facts, swarm, computing_s(chosen, facts, swarm))).seconds
    beat_s = min(max(BEAT_STEPS * step_s, BEAT_S_MIN), BEAT_S_MAX)
    patience_s = min(max(PATIENCE_STEPS * step_s, PATIENCE_S_MIN), PATIENCE_S_MAX)
    if steps is None:
        trained = tokens if tokens is not None else tokens_for(facts, sizes)
        steps = steps_for(trained, samples * facts.context * swarm.nodes)
    return RunSpec(
        model=model,
        data=data,
        schedule=ScheduleSpec(steps=steps, warmup_steps=warmup_steps(steps), learning_rate=rate_for(facts, chosen)),
        round=RoundSpec(
            pace="clock",
            length_ms=round(1000 * rounded_s(beat_s)),
            min_contributions=NODES_LEAST,
            nodes_max=min(swarm.nodes + SPARE_NODES, NODES_MOST),
        ),
        rule=chosen,
        exchange=exchange.model_copy(
            update={
                "patience_ms": 1000 * math.ceil(patience_s),
                "gradient_pull": GRADIENT_PULL if chosen.kind == MUON else 0.0,
            }
        ),
    )
