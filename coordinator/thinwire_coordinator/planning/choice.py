"""Works out the settings of a new run for given model, data, nodes and links."""

from __future__ import annotations

import math
from collections.abc import Sequence

from thinwire_coordinator.planning import traffic
from thinwire_coordinator.planning.facts import DataFacts, ModelFacts, SwarmFacts
from thinwire_coordinator.planning.forecast import round_of
from thinwire_coordinator.planning.settings import (
    ADAPTER_RATE,
    PASSES_MAX,
    TOKENS_A_PARAMETER,
    TUNING_PASSES,
    TUNING_RATE_PART,
    budgets,
    known_batch,
    known_rate,
    warmup_steps,
)
from thinwire_proto.contract import DataSpec, DemoSpec, ModelSpec, RoundSpec, RunSpec, ScheduleSpec
from thinwire_proto.errors import ConfigError

TRANSFER_PART = 0.5
"""The part of a round that upload and download may take, so that a slower link than foretold still delivers."""
STRETCH_MAX = 2.0
"""A round may be longer than the batch wants by this factor. Beyond it, k is made smaller."""
ROUND_S_MIN, ROUND_S_MAX = 2.0, 600.0
"""In a shorter round, a machine that is busy for a moment misses its end; a longer one shows too seldom that all is
well."""
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
    tokens: float | None = None,
    steps: int | None = None,
) -> RunSpec:
    """The run for this model and these data.

    tokens, steps: how long it trains; by default `tokens_for`. Raises ConfigError for more steps than a run can have.

    The pace is the clock, because nodes of strangers differ in speed: a slow node then contributes less, and delays
    nobody.
    """
    demo, seconds = _round_s(facts, swarm)
    one_sample_s = facts.context / swarm.tokens_s
    length_s = rounded_s(min(max(seconds, one_sample_s), LENGTH_MS_MAX / 1000))
    fitting = length_s * swarm.tokens_s / facts.context
    wanted_samples = known_batch(facts.trained) / facts.context / swarm.nodes
    rounds = RoundSpec(
        pace="clock",
        length_ms=round(1000 * length_s),
        samples=min(max(1, round(min(fitting, wanted_samples))), SAMPLES_MAX),
    )
    if steps is None:
        wanted = tokens if tokens is not None else tokens_for(facts, sizes)
        each, _ = round_of(rounds, facts.context, swarm.tokens_s, _transfer_s(facts, demo, swarm))
        steps = steps_for(wanted, each * swarm.nodes)
    schedule = ScheduleSpec(steps=steps, warmup_steps=warmup_steps(steps), learning_rate=rate_for(facts))
    return RunSpec(model=model, data=data, demo=demo, schedule=schedule, round=rounds)


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


def rate_for(facts: ModelFacts) -> float:
    """A peak learning rate, to two digits."""
    if facts.frozen:
        return ADAPTER_RATE
    return float(f"{known_rate(facts.trained) * (TUNING_RATE_PART if facts.begins else 1):.1e}")


def _round_s(facts: ModelFacts, swarm: SwarmFacts) -> tuple[DemoSpec, float]:
    """The setting of [demo] with the most bytes whose transfers fit into a round of the known batch, and the round's
    length."""
    batch_s = known_batch(facts.trained) / (swarm.nodes * swarm.tokens_s)
    wanted_s = min(max(batch_s, ROUND_S_MIN), ROUND_S_MAX)
    options: Sequence[DemoSpec] = budgets(facts.padding)
    for demo in options:
        needed_s = _transfer_s(facts, demo, swarm) / TRANSFER_PART
        if needed_s <= STRETCH_MAX * wanted_s or demo is options[-1]:
            return demo, max(wanted_s, needed_s)
    raise AssertionError("there is at least one setting")


def _transfer_s(facts: ModelFacts, demo: DemoSpec, swarm: SwarmFacts) -> float:
    up = 8 * traffic.contribution_bytes(facts, demo, swarm.nodes) / swarm.up_bits_s
    return up + 8 * traffic.update_bytes(facts, demo, swarm.nodes) / swarm.down_bits_s


def rounded_s(seconds: float) -> float:
    """Round up to a length that people like to read."""
    unit = next(unit for below, unit in ((10, 0.5), (60, 1), (600, 5), (math.inf, 60)) if seconds < below)
    return math.ceil(seconds / unit - 1e-9) * unit
