"""The rule that `thinwire-coordinator init` chooses, with its steps and rounds; and what `check` says of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from support.planning import DATA, chosen, facts_of_preset, prepared, run_init, swarm
from thinwire_coordinator.planning.exchanges import plan_of
from thinwire_coordinator.planning.facts import ModelFacts, SwarmFacts
from thinwire_coordinator.planning.problems import check_file, read_run
from thinwire_coordinator.planning.settings import MORE_PASSES_MAX
from thinwire_coordinator.planning.star.choice import LOCAL_ROUNDS_MIN, LOCAL_STEPS, ROUND_S_MAX, Amount, kind_for
from thinwire_coordinator.planning.star.planner import advise
from thinwire_proto.contract import LocalMuonSpec, RunSpec
from thinwire_proto.contract.round import LEASE_ROUNDS
from thinwire_proto.errors import ConfigError
from thinwire_proto.muon import orthogonal

BYTE_1M = facts_of_preset("byte-1m")
LONG = 1e12
"""Tokens enough for any number of rounds."""


def test_many_nodes_take_local_steps_of_muon() -> None:
    """As in the study, where sixteen nodes take four steps of four samples a round, at 0.015."""
    few, enough, many = (chosen(BYTE_1M, swarm(nodes)) for nodes in (7, 8, 16))
    assert (few.rule.kind, enough.rule.kind, many.rule.kind) == ("demo", "local_muon", "local_muon")
    assert isinstance(many.rule, LocalMuonSpec)
    assert (many.rule.micro_batch, many.schedule.learning_rate) == (4, 0.015)
    assert many.demo == RunSpec(rule=many.rule).demo
    assert many.schedule.steps == pytest.approx(LOCAL_ROUNDS_MIN, rel=0.1)
    samples = plan_of(many, BYTE_1M, DATA, swarm(16)).step.tokens / 16 / BYTE_1M.context
    assert samples / many.rule.micro_batch == pytest.approx(LOCAL_STEPS, rel=0.15)


@pytest.mark.parametrize("preset", ["byte-1m", "byte-125m"])
@pytest.mark.parametrize("nodes", [16, 256])
@pytest.mark.parametrize("tokens_s", [1e3, 1e5])
@pytest.mark.parametrize("gigabytes", [2, 200])
def test_local_steps_suit_the_nodes(preset: str, nodes: int, tokens_s: float, gigabytes: int) -> None:
    """Long runs over fast links: whether or not local steps are chosen, they are as many and as large as they should
    be."""
    facts, of, memory_bytes = facts_of_preset(preset), swarm(nodes, 1e9, 1e9, tokens_s), gigabytes * 1e9
    run = chosen(facts, of, rule="local_muon", tokens=LONG, memory_bytes=memory_bytes)
    plan = plan_of(run, facts, DATA, of, memory_bytes)
    assert isinstance(run.rule, LocalMuonSpec)
    assert run.rule.micro_batch <= plan.micro_batch
    step_s = plan.micro_batch * facts.context / tokens_s
    overhead = run.rule.more_passes(facts.parameters, run.rule.micro_batch * facts.context)
    steps = plan.step.tokens / nodes / facts.context / run.rule.micro_batch
    if kind_for(facts, of, Amount(LONG), memory_bytes) == "local_muon":
        assert overhead <= MORE_PASSES_MAX
        assert LOCAL_STEPS <= steps <= LEASE_ROUNDS * LOCAL_STEPS + 1
        assert run.rule.micro_batch * facts.context * (1 + overhead) / tokens_s <= run.round.length_s / LOCAL_STEPS
        assert chosen(facts, of, tokens=LONG, memory_bytes=memory_bytes) == run
    else:
        is_slow = LOCAL_STEPS * step_s > ROUND_S_MAX / 2 or plan.step.exchange_s > 0.4 * run.round.length_s
        assert is_slow or overhead > MORE_PASSES_MAX


@pytest.mark.parametrize(
    ("facts", "of", "tokens"),
    [
        (replace(BYTE_1M, begins=True), swarm(64), LONG),
        (replace(BYTE_1M, frozen=10**9), swarm(64), LONG),
        (replace(BYTE_1M, parameters=BYTE_1M.parameters[:1]), swarm(64), LONG),  # an embedding
        (BYTE_1M, swarm(64), 17e6),  # a sixth of the rounds that local steps need
        (BYTE_1M, swarm(64, up=1e4, down=1e5), LONG),  # a round would be far longer than its steps
        (BYTE_1M, swarm(64, tokens_s=1), LONG),
    ],
    ids=["begins from weights", "adapter", "no matrix", "few rounds", "slow links", "slow nodes"],
)
def test_many_nodes_vote_where_local_steps_do_not_suit(facts: ModelFacts, of: SwarmFacts, tokens: float) -> None:
    assert kind_for(BYTE_1M, swarm(64), Amount(LONG), math.inf) == "local_muon"
    assert kind_for(facts, of, Amount(tokens), math.inf) == chosen(facts, of, tokens=tokens).rule.kind == "demo"


def test_rounds_that_are_given_count_as_they_are() -> None:
    assert chosen(BYTE_1M, swarm(16), steps=LOCAL_ROUNDS_MIN).rule.kind == "local_muon"
    assert chosen(BYTE_1M, swarm(16), steps=LOCAL_ROUNDS_MIN - 1).rule.kind == "demo"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (replace(BYTE_1M, frozen=10**9), "an adapter"),
        (replace(BYTE_1M, parameters=BYTE_1M.parameters[:1]), "no matrix that could take steps of Muon"),
    ],
)
def test_local_steps_of_muon_need_a_matrix_from_scratch(facts: ModelFacts, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        chosen(facts, swarm(), rule="local_muon")


def test_orthogonalizing_takes_what_its_products_take() -> None:
    """Operations as torch counts them."""
    rule, parameters = LocalMuonSpec(), BYTE_1M.parameters
    with FlopCounterMode(display=False) as counter:
        for one in parameters:
            if rule.takes(one):
                orthogonal(torch.zeros(one.shape))
    pass_of = 6 * BYTE_1M.trained * 1024
    assert rule.more_passes(parameters, 1024) == pytest.approx(counter.get_total_flops() / pass_of, rel=0.3)
    assert rule.more_passes(parameters, 1024) >= counter.get_total_flops() / pass_of


def test_the_rule_can_be_chosen(tmp_path: Path) -> None:
    data, out = prepared(tmp_path / "data"), tmp_path / "run.toml"
    for rule, nodes in (("local_muon", "4"), ("demo", "16")):
        run_init("--data", str(data), "--nodes", nodes, "--rule", rule, "--out", str(out), "--force")
        text = out.read_text()
        assert f"--rule {rule} --nodes {nodes}" in text
        assert ("# samples of a local step: " in text) == (rule == "local_muon")
        assert read_run(out).rule.kind == rule
        assert check_file(out).problems == ()


@pytest.mark.parametrize("nodes", [8, 64, 200])
def test_many_nodes_that_vote_are_told_of_local_steps(nodes: int) -> None:
    of = swarm(nodes)
    told = {}
    for rule in ("demo", "local_muon"):
        plan = plan_of(chosen(BYTE_1M, of, rule=rule, tokens=1e9), BYTE_1M, DATA, of, 8e9)
        told[rule] = [advice.text for advice in advise(plan) if advice.key == "rule.kind"]
    assert told["local_muon"] == []
    assert [text for text in told["demo"] if "a learning_rate of about 0.015" in text] == told["demo"] != []


def test_four_nodes_that_vote_are_told_nothing() -> None:
    plan = plan_of(chosen(BYTE_1M, swarm(), tokens=1e9), BYTE_1M, DATA, swarm(), 8e9)
    assert not [advice for advice in advise(plan) if advice.key == "rule.kind"]
