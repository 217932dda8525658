"""Chooses the optimizer of nodes that step by themselves."""

from __future__ import annotations

from thinwire_coordinator.planning.facts import ModelFacts
from thinwire_coordinator.planning.for_muon import check_muon, suits
from thinwire_coordinator.planning.settings import MANY_NODES, MORE_PASSES_MAX
from thinwire_proto.contract.rules.adamw import AdamWSpec
from thinwire_proto.contract.rules.muon import MuonSpec
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec

ADAMW, MUON = AdamWSpec().kind, MuonSpec().kind
OWN_KINDS: tuple[str, ...] = (ADAMW, MUON)
"""The rules that `init --exchange gossip` can choose."""


def own_rule(facts: ModelFacts, nodes: int, samples: int, kind: str | None = None) -> OwnStepsSpec:
    """The rule for so many nodes, with iterations of so many samples each. kind: one of OWN_KINDS; by default what
    suits.

    Raises ConfigError for steps of Muon on an adapter, or on a model without a matrix for them.
    """
    if kind == MUON:
        check_muon(facts, MuonSpec(), instead=ADAMW)
    if (kind or _suitable(facts, nodes, samples)) == MUON:
        return MuonSpec(samples=samples)
    return AdamWSpec(samples=samples)


def _suitable(facts: ModelFacts, nodes: int, samples: int) -> str:
    """Muon where it is known to learn more (docs/convergence), and costs little more time; else AdamW."""
    rule = MuonSpec()
    costs_little = rule.more_passes(facts.parameters, samples * facts.context) <= MORE_PASSES_MAX
    return MUON if nodes >= MANY_NODES and suits(facts, rule) and costs_little else ADAMW
