"""Chooses what nodes do with gradients, and the setting of `demo` and the round that go with it.

A node sends as many bytes a token either way: with `local_muon`, a round has several local steps, and all components
travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire_coordinator.planning import traffic
from thinwire_coordinator.planning.facts import ModelFacts, SwarmFacts
from thinwire_coordinator.planning.settings import (
    LOCAL_STEPS,
    MANY_NODES,
    TOKENS_A_WIDTH,
    budgets,
    known_batch,
)
from thinwire_proto.contract import DemoRuleSpec, DemoSpec, LocalMuonSpec, RuleSpec
from thinwire_proto.errors import ConfigError

DEMO, LOCAL_MUON = DemoRuleSpec().kind, LocalMuonSpec().kind
KINDS: tuple[str, ...] = (DEMO, LOCAL_MUON)
"""The rules that `init` can choose."""
TRANSFER_PART = 0.5
"""The part of a round that upload and download may take, so that a slower link than foretold still delivers."""
STRETCH_MAX = 2.0
"""A round may be longer than the batch wants by this factor. Beyond it, nodes send less."""
ROUND_S_MIN, ROUND_S_MAX = 2.0, 600.0
"""In a shorter round, a machine that is busy for a moment misses its end; a longer one shows too seldom that all is
well."""


@dataclass(frozen=True)
class Settings:
    """rule, demo: sections of the run. seconds: the length of a round. samples: that a node should train in it."""

    rule: RuleSpec
    demo: DemoSpec
    seconds: float
    samples: float


def settings_for(facts: ModelFacts, swarm: SwarmFacts, kind: str | None = None) -> Settings:
    """The settings for this model and these nodes. kind: of the rule, one of KINDS; by default what suits them.

    Raises ConfigError for local steps of Muon on an adapter.
    """
    if kind == LOCAL_MUON and facts.frozen:
        raise ConfigError(f"nobody has trained an adapter with local steps of Muon yet; take --rule {DEMO}")
    return _local_muon(facts, swarm) if (kind or kind_for(facts, swarm)) == LOCAL_MUON else _votes(facts, swarm)


def kind_for(facts: ModelFacts, swarm: SwarmFacts) -> str:
    """The kind of rule that learns more: local steps of Muon for many nodes, unless the model begins from weights or
    the links are too slow for all components."""
    if swarm.nodes < MANY_NODES or facts.frozen or facts.begins:
        return DEMO
    local = _local_muon(facts, swarm)
    is_too_long = local.seconds > STRETCH_MAX * _wanted_s(local.samples * facts.context / swarm.tokens_s)
    return DEMO if is_too_long else LOCAL_MUON


def _votes(facts: ModelFacts, swarm: SwarmFacts) -> Settings:
    """The setting of `demo` with the most bytes whose transfers fit into a round of the known batch."""
    tokens = known_batch(facts.trained) / swarm.nodes
    wanted_s = _wanted_s(tokens / swarm.tokens_s)
    options: Sequence[DemoSpec] = budgets(facts.padding)
    for demo in options:
        needed_s = transfer_s(facts, demo, swarm) / TRANSFER_PART
        if needed_s <= STRETCH_MAX * wanted_s or demo is options[-1]:
            return Settings(DemoRuleSpec(), demo, max(wanted_s, needed_s), tokens / facts.context)
    raise AssertionError("there is at least one setting")


def _local_muon(facts: ModelFacts, swarm: SwarmFacts) -> Settings:
    """Local steps of the known batch, of enough tokens that orthogonalizing takes a small part of the time."""
    tokens = max(known_batch(facts.trained) / swarm.nodes, TOKENS_A_WIDTH * _width(facts))
    most = ROUND_S_MAX * swarm.tokens_s / LOCAL_STEPS
    micro_batch = max(1, round(min(tokens, most) / facts.context))
    samples = LOCAL_STEPS * micro_batch
    demo = DemoSpec.model_validate(LocalMuonSpec.DEMO_DEFAULTS)
    wanted_s = _wanted_s(samples * facts.context / swarm.tokens_s)
    seconds = max(wanted_s, transfer_s(facts, demo, swarm) / TRANSFER_PART)
    return Settings(LocalMuonSpec(micro_batch=micro_batch), demo, seconds, samples)


def _width(facts: ModelFacts) -> int:
    """The largest shorter side of a matrix that takes steps of Muon."""
    rule = LocalMuonSpec()
    return max((min(one.shape) for one in facts.parameters if rule.takes(one)), default=0)


def _wanted_s(computing_s: float) -> float:
    return min(max(computing_s, ROUND_S_MIN), ROUND_S_MAX)


def transfer_s(facts: ModelFacts, demo: DemoSpec, swarm: SwarmFacts) -> float:
    """Seconds of upload and download in a round."""
    up = 8 * traffic.contribution_bytes(facts, demo, swarm.nodes) / swarm.up_bits_s
    return up + 8 * traffic.update_bytes(facts, demo, swarm.nodes) / swarm.down_bits_s
