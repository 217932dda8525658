"""Works out the settings of a new run for given model, data, nodes and links."""

from __future__ import annotations

import math

from thinwire_coordinator.planning.facts import DataFacts, ModelFacts, SwarmFacts
from thinwire_coordinator.planning.forecast import forecast
from thinwire_coordinator.planning.rule_choice import Amount, choice_for
from thinwire_coordinator.planning.settings import (
    ADAPTER_RATE,
    PASSES_MAX,
    TOKENS_A_PARAMETER,
    TUNING_PASSES,
    TUNING_RATE_PART,
    known_rate,
    warmup_steps,
)
from thinwire_proto.contract import DataSpec, ModelSpec, RoundSpec, RuleSpec, RunSpec, ScheduleSpec
from thinwire_proto.errors import ConfigError

SAMPLES_MAX = 1 << 20
LENGTH_MS_MAX = 86_400_000
STEPS_MAX = 1 << 31
"""These three are bounds of the contract."""


def choose(
    model: ModelSpec,
    data: DataSpec,
    facts: ModelFacts,
    sizes: DataFacts,
    swarm: SwarmFacts,
    *,
    rule: str | None = None,
    memory_bytes: float = math.inf,
    tokens: float | None = None,
    steps: int | None = None,
) -> RunSpec:
    """The run for this model and these data.

    rule: its kind; by default what suits these nodes. memory_bytes: of a node. tokens, steps: how long it trains; by
    default `tokens_for`.
    Raises ConfigError for more steps than a run can have, and for a rule that does not suit the model.

    The pace is the clock, because nodes of strangers differ in speed: a slow node then contributes less, and delays
    nobody.
    """
    wanted = tokens if tokens is not None else tokens_for(facts, sizes)
    chosen = choice_for(facts, swarm, Amount(wanted, steps), memory_bytes, rule)
    one_sample_s = facts.context / swarm.tokens_s
    length_s = rounded_s(min(max(chosen.round_s, one_sample_s), LENGTH_MS_MAX / 1000))
    fitting = length_s * swarm.tokens_s / facts.context
    rounds = RoundSpec(
        pace="clock",
        length_ms=round(1000 * length_s),
        samples=min(max(1, round(min(fitting, chosen.samples))), SAMPLES_MAX),
    )
    if steps is None:
        run = RunSpec(model=model, demo=chosen.demo, rule=chosen.rule, round=rounds)
        steps = steps_for(wanted, forecast(run, facts, sizes, swarm).tokens_a_round)
    rate = rate_for(facts, chosen.rule)
    schedule = ScheduleSpec(steps=steps, warmup_steps=warmup_steps(steps), learning_rate=rate)
    return RunSpec(model=model, data=data, demo=chosen.demo, rule=chosen.rule, schedule=schedule, round=rounds)


def tokens_for(facts: ModelFacts, sizes: DataFacts) -> float:
    """Tokens that the run should train on: 20 a parameter, but not more than four passes over the data, or two to
    fine-tune."""
    wanted = TOKENS_A_PARAMETER * (facts.trained + facts.frozen)
    passes = TUNING_PASSES if facts.frozen or facts.begins else PASSES_MAX
    return min(wanted, passes * sizes.all_tokens) if sizes.all_tokens else wanted


def steps_for(tokens: float, tokens_a_step: float) -> int:
    """The steps that train so many tokens, at least two. Raises ConfigError if a run cannot have so many."""
    if tokens > STEPS_MAX * tokens_a_step:
        raise ConfigError(
            f"{tokens:.3g} tokens are more than {STEPS_MAX:,} steps, the most of a run, of {tokens_a_step:.3g} tokens "
            "of all nodes; give fewer --tokens, or more or faster nodes"
        )
    return max(2, int(tokens / tokens_a_step))


def rate_for(facts: ModelFacts, rule: RuleSpec) -> float:
    """A peak learning rate, to two digits."""
    of_votes = ADAPTER_RATE if facts.frozen else known_rate(facts.trained) * (TUNING_RATE_PART if facts.begins else 1)
    return float(f"{of_votes * rule.RATE_OVER_DEMO:.1e}")


def rounded_s(seconds: float) -> float:
    """Round up to a length that people like to read."""
    unit = next(unit for below, unit in ((10, 0.5), (60, 1), (600, 5), (math.inf, 60)) if seconds < below)
    return math.ceil(seconds / unit - 1e-9) * unit
