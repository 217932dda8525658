"""Whether a model can take steps of Muon, in rounds or without a centre."""

from __future__ import annotations

from thinwire_coordinator.planning.facts import ModelFacts
from thinwire_proto.contract.rules.muon_steps import MuonStepsSpec
from thinwire_proto.errors import ConfigError


def has_matrices(facts: ModelFacts, rule: MuonStepsSpec) -> bool:
    """Whether a parameter would take steps of Muon."""
    return any(rule.takes(one) for one in facts.parameters)


def suits(facts: ModelFacts, rule: MuonStepsSpec) -> bool:
    """Whether Muon is known to train this: a model from scratch, with a matrix for it."""
    return not facts.frozen and not facts.begins and has_matrices(facts, rule)


def check_muon(facts: ModelFacts, rule: MuonStepsSpec, instead: str) -> None:
    """Raise ConfigError if nobody knows how to train this with Muon. instead: the kind of rule to take."""
    if facts.frozen:
        raise ConfigError(f"nobody has trained an adapter with steps of Muon yet; take --rule {instead}")
    if not has_matrices(facts, rule):
        raise ConfigError(f"the model has no matrix that could take steps of Muon; take --rule {instead}")
