"""Writes a commented run file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from thinwire_common.units import human_count
from thinwire_coordinator.planning import figures_in_words, gossip_words
from thinwire_coordinator.planning.advice import AnyPlan, Plan
from thinwire_coordinator.planning.figures_in_words import Row
from thinwire_coordinator.planning.gossip_plan import GossipPlan
from thinwire_coordinator.planning.rule_choice import LOCAL_MUON
from thinwire_proto.contract import LocalMuonSpec, RunSpec

COMMENT_COLUMN = 32
Key = tuple[str, Any, str]
"""(key, value, comment) of one line."""


def rows_of(plan: AnyPlan) -> dict[str, list[Row]]:
    """The figures of a plan, by what they are about."""
    if isinstance(plan, GossipPlan):
        return {
            "the run": gossip_words.run_rows(plan),
            "each volunteer": gossip_words.volunteer_rows(plan),
            "the coordinator": gossip_words.coordinator_rows(plan),
        }
    return {
        "the run": figures_in_words.run_rows(plan),
        "each volunteer": figures_in_words.volunteer_rows(plan),
        "the coordinator": figures_in_words.coordinator_rows(plan),
    }


def run_text(plan: AnyPlan, command: str, model: Sequence[Key], data: Sequence[Key], sources: Mapping[str, int]) -> str:
    """The text of a run file.

    command: how it was made. model, data: the lines of these sections. sources: tokens of each source of the data.
    """
    keys = gossip_words.keys_of(plan) if isinstance(plan, GossipPlan) else _keys_of_rounds(plan)
    sections = {"model": _keys(model), "data": [*_keys(data), *_mixture(sources)]}
    sections |= {name: _keys(lines) for name, lines in keys.items()}
    lines = [
        f"# Made by: {command}",
        "#",
        "# Edit what you like, then run `thinwire-coordinator check` on this file. docs/run-file.md has every key.",
        "# Figures are estimates for the nodes and links given above; `check` works them out again.",
        "#",
        *(line for title, rows in rows_of(plan).items() for line in _rows(title.capitalize(), rows)),
        *(line for name, of_section in sections.items() for line in ("", f"[{name}]", *of_section)),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _keys_of_rounds(plan: Plan) -> dict[str, list[Key]]:
    found = {"schedule": _schedule(plan), "round": _round(plan)}
    if isinstance(plan.run.rule, LocalMuonSpec):
        return found | {"rule": _local_muon(plan, plan.run.rule)}
    return found | {"demo": _demo(plan.run)}


def _schedule(plan: Plan) -> list[Key]:
    schedule, facts = plan.run.schedule, plan.model
    measured = "measured" if facts.trained < 2_000_000 else "extended from smaller models"
    usual = f"for {human_count(facts.trained)} parameters, {measured}"
    if facts.frozen:
        usual = "usual for an adapter"
    elif facts.begins:
        usual = "a tenth of that from scratch, because the model begins from weights"
    matrices = " of the matrices" if plan.run.rule.kind == LOCAL_MUON else ""
    tokens = plan.figures.tokens / max(1, facts.trained + facts.frozen)
    return [
        ("steps", schedule.steps, f"{tokens:.3g} tokens for each parameter"),
        ("learning_rate", schedule.learning_rate, f"the peak{matrices}; {usual}"),
        ("warmup_steps", schedule.warmup_steps, "then the rate falls as a cosine"),
        ("floor", schedule.floor, "to this part of the peak"),
    ]


def _round(plan: Plan) -> list[Key]:
    rounds = plan.run.round
    transfer = f"{plan.figures.transfer_s / plan.figures.round_s:.0%} of it for the network"
    return [
        ("pace", rounds.pace, "a slow node contributes less, and delays nobody"),
        ("length_ms", rounds.length_ms, transfer),
        ("samples", rounds.samples, "of a node for its full weight; up to 3 times as many are used"),
    ]


def _local_muon(plan: Plan, rule: LocalMuonSpec) -> list[Key]:
    samples = plan.figures.tokens_a_round / plan.swarm.nodes / plan.model.context
    steps = math.ceil(samples / rule.micro_batch)
    return [
        ("kind", rule.kind, "a node takes local steps of Muon, and sends the sign of each component of their sum"),
        ("micro_batch", rule.micro_batch, f"samples of a local step: {steps} steps a round"),
    ]


def _demo(run: RunSpec) -> list[Key]:
    found: list[Key] = [("k", run.demo.k, "components of each tile of 4,096 that a node sends; fewer are fewer bytes")]
    if run.demo.update_topk:
        found.append(("update_topk", run.demo.update_topk, "the strongest that an update keeps"))
    return found


def _mixture(sources: Mapping[str, int]) -> list[str]:
    if len(sources) < 2:
        return []
    shares = ", ".join(f"{json.dumps(name)} = 1.0" for name in sources)
    return [f"# weights = {{ {shares} }}", "# how often each source is drawn; without it, by its size"]


def _rows(title: str, rows: Iterable[Row]) -> list[str]:
    return [f"# {title}", *(f"#   {name:<14} {value}" for name, value in rows), "#"]


def _keys(keys: Iterable[Key]) -> list[str]:
    lines = []
    for key, value, comment in keys:
        text = f"{key} = {json.dumps(value, ensure_ascii=False)}"
        lines.append(f"{text:<{COMMENT_COLUMN - 1}} # {comment}" if comment else text)
    return lines
