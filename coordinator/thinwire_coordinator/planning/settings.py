"""What a new run is chosen for, and the settings of any exchange that are known to work, extended to other sizes.

Everything that was measured here was measured at 0.9M parameters (docs/convergence). For larger models, the rate and
the batch follow the published table of GPT-3 (arXiv 2005.14165, table 2.1), between its points on a logarithmic scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from thinwire_coordinator.planning.facts import DataFacts, ModelFacts, SwarmFacts
from thinwire_proto.contract import DataSpec, ModelSpec, RuleSpec, ScheduleSpec
from thinwire_proto.contract.rules.muon_steps import MuonStepsSpec
from thinwire_proto.errors import ConfigError

TOKENS_A_PARAMETER = 20
"""Compute-optimal tokens (arXiv 2203.15556)."""
PASSES_MAX = 4
"""Passes over the data up to which repeated text is worth nearly as much as new text (arXiv 2305.16264)."""
TUNING_RATE_PART = 0.1
"""Rate of a run that begins from weights, as a part of the rate from scratch. Usual with AdamW; not measured here."""
ADAPTER_RATE = 1.3e-4
"""Rate of a LoRA adapter: 2/3 of AdamW's 2e-4 (arXiv 2305.14314, table 9); not measured here."""
TUNING_PASSES = 2
"""Passes over the data of a run that begins from weights, or trains an adapter."""
WARMUP_PART, WARMUP_STEPS_MIN, WARMUP_STEPS_MAX = 0.05, 10, 2000


class Point(NamedTuple):
    parameters: float
    learning_rate: float
    batch_tokens: float


POINTS = (
    Point(0.886e6, 2e-3, 4_096),  # docs/convergence: the sweep of learning rates; 16 samples of 256 tokens
    Point(125e6, 4e-4, 0.5e6),  # GPT-3: 6e-4 for AdamW. Here, 2/3 of AdamW's best rate was best
    Point(350e6, 2e-4, 0.5e6),
    Point(1_300e6, 1.33e-4, 1e6),
)
MORE_PASSES_MAX = 0.7
"""What orthogonalizing may take, in passes. In docs/convergence it takes 0.6 of one with four samples a node."""
SAMPLES_MAX = 1 << 20
STEPS_MAX = 1 << 31
"""Bounds of the contract."""


@dataclass(frozen=True)
class Wanted:
    """What a new run is chosen for.

    rule: its kind; by default what suits these nodes. memory_bytes: of a node. tokens, steps: how long it trains; by
    default `tokens_for`. growth: how many times as large its rounds become; by default what suits these nodes.
    """

    model: ModelSpec
    data: DataSpec
    facts: ModelFacts
    sizes: DataFacts
    swarm: SwarmFacts
    memory_bytes: float = math.inf
    rule: str | None = None
    tokens: float | None = None
    steps: int | None = None
    growth: int | None = None


def tokens_for(wanted: Wanted) -> float:
    """Tokens to train on: as many as are asked for, or 20 a parameter, but not more than four passes over the data, or
    two to fine-tune."""
    if wanted.tokens is not None:
        return wanted.tokens
    facts, all_tokens = wanted.facts, wanted.sizes.all_tokens
    suits = float(TOKENS_A_PARAMETER * (facts.trained + facts.frozen))
    passes = TUNING_PASSES if facts.frozen or facts.begins else PASSES_MAX
    return min(suits, passes * all_tokens) if all_tokens else suits


def schedule_for(wanted: Wanted, rule: RuleSpec, tokens_a_step: float) -> ScheduleSpec:
    """The schedule of a run whose steps train so many tokens. Raises ConfigError if a run cannot have so many steps."""
    tokens, steps = tokens_for(wanted), wanted.steps
    if steps is None:
        if tokens > STEPS_MAX * tokens_a_step:
            raise ConfigError(
                f"{tokens:.3g} tokens are more than {STEPS_MAX:,} steps, the most of a run, of {tokens_a_step:.3g} "
                "tokens of all nodes; give fewer --tokens, or more or faster nodes"
            )
        steps = max(2, int(tokens / tokens_a_step))
    warmup = min(max(WARMUP_STEPS_MIN, int(steps * WARMUP_PART)), WARMUP_STEPS_MAX, steps // 5)
    return ScheduleSpec(steps=steps, warmup_steps=warmup, learning_rate=rate_for(wanted.facts, rule))


def rate_for(facts: ModelFacts, rule: RuleSpec) -> float:
    """A peak learning rate, to two digits."""
    from_scratch = rule.RATE or known_rate(facts.trained) * rule.RATE_OVER_DEMO
    if facts.frozen:
        return float(f"{ADAPTER_RATE * rule.RATE_OVER_DEMO:.1e}")
    return float(f"{from_scratch * (TUNING_RATE_PART if facts.begins else 1):.1e}")


def suits_muon(facts: ModelFacts, rule: MuonStepsSpec) -> bool:
    """Whether Muon is known to train this: a model from scratch, with a matrix for it."""
    return not facts.frozen and not facts.begins and any(map(rule.takes, facts.parameters))


def check_muon(facts: ModelFacts, rule: MuonStepsSpec, instead: str) -> None:
    """Raise ConfigError if nobody knows how to train this with Muon. instead: the kind of rule to take."""
    if facts.frozen:
        raise ConfigError(f"nobody has trained an adapter with steps of Muon yet; take --rule {instead}")
    if not any(map(rule.takes, facts.parameters)):
        raise ConfigError(f"the model has no matrix that could take steps of Muon; take --rule {instead}")


def rounded_s(seconds: float) -> float:
    """Round up to a length that people like to read."""
    unit = next(unit for below, unit in ((10, 0.5), (60, 1), (600, 5), (math.inf, 60)) if seconds < below)
    return math.ceil(seconds / unit - 1e-9) * unit


def known_rate(parameters: int) -> float:
    """A peak learning rate for a model of this size, to two digits."""
    return float(f"{_between(parameters, [point.learning_rate for point in POINTS]):.1e}")


def known_batch(parameters: int) -> float:
    """Tokens of all nodes together in a step, for a model of this size."""
    return _between(parameters, [point.batch_tokens for point in POINTS])


def _between(parameters: int, values: list[float]) -> float:
    """Interpolate between POINTS on logarithmic scales; constant below the first and above the last."""
    sizes = np.log([point.parameters for point in POINTS])
    return math.exp(np.interp(math.log(max(1, parameters)), sizes, np.log(values)))
