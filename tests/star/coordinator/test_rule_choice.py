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
from thinwire_coordinator.planning.star.choice import (
    COORDINATOR_FLOAT64_FLOPS,
    LOCAL_ROUNDS_MIN,
    ROUND_S_MIN,
    STEP_PART,
    TRANSFER_PART,
    Amount,
    choice_for,
)
from thinwire_coordinator.planning.star.planner import advise
from thinwire_planner.methods.star import LOCAL_STEPS
from thinwire_proto.contract import LocalMuonSpec, MergedMuonSpec, RunSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.muon import orthogonal

BYTE_1M = facts_of_preset("byte-1m")
BYTE_10M = facts_of_preset("byte-10m")
LONG = 1e12
"""Tokens enough for any number of rounds."""
THIN = 0.6e6
"""Bits a second: too few for all gradients, and enough for the signs of local steps."""


@pytest.mark.parametrize("nodes", [2, 4, 64])
def test_gradients_travel_where_links_and_machines_have_the_time(nodes: int) -> None:
    run = chosen(BYTE_1M, swarm(nodes, up=3e6))
    assert run.rule.kind == "merged_muon"
    assert run.schedule.learning_rate == 0.01
    assert run.demo == RunSpec(rule=run.rule).demo
    step = plan_of(run, BYTE_1M, DATA, swarm(nodes, up=3e6), 8e9).step
    assert step.computing_s + step.exchange_s / TRANSFER_PART <= step.seconds == ROUND_S_MIN
    longer = chosen(BYTE_1M, swarm(nodes, up=1.5e6))
    assert (longer.rule.kind, longer.round.length_s) == ("merged_muon", 1.25 * ROUND_S_MIN)
    assert chosen(BYTE_1M, swarm(nodes, up=0.6e6)).rule.kind != "merged_muon"  # not for twice as long
    assert chosen(BYTE_10M, swarm(16)).rule.kind == "local_muon"  # two cores take longer for the step than a round


@pytest.mark.parametrize("nodes", [2, 4, 64])
def test_gradients_travel_in_finer_levels_where_that_takes_no_time_from_a_round(nodes: int, tmp_path: Path) -> None:
    fine, slower = chosen(BYTE_1M, swarm(nodes)), chosen(BYTE_1M, swarm(nodes, up=3e6))
    assert (fine.demo.vote_step, fine.demo.vote_levels, fine.demo.update_levels) == (0.5, 9, 15)
    assert fine.round.length_s == slower.round.length_s
    step = plan_of(fine, BYTE_1M, DATA, swarm(nodes), 8e9).step
    assert step.computing_s + step.exchange_s / TRANSFER_PART <= step.seconds == ROUND_S_MIN
    assert chosen(BYTE_1M, swarm(500)).demo == slower.demo  # no room for the sum of so many
    out = tmp_path / "run.toml"
    run_init("--nodes", str(nodes), "--model", "byte-1m", "--out", str(out))
    assert "vote_levels = 9" in out.read_text()
    assert check_file(out).problems == ()
    assert read_run(out).round.nodes_max == fine.round.nodes_max < 500


def test_nodes_that_wait_with_merged_gradients_are_told_of_local_steps() -> None:
    """Four steps of four samples take 0.7 s, and so the two seconds of the shortest round: 2.21 · 2 s / 4 in place of
    1.08 · 2 s, by the tokens of docs/convergence."""
    for kind, expected in (("merged_muon", True), ("demo", False)):
        plan = plan_of(chosen(BYTE_1M, swarm(4), rule=kind), BYTE_1M, DATA, swarm(4), 8e9)
        (told,) = [advice.text for advice in advise(plan) if advice.key == "round.samples"] or [""]
        assert ("--rule local_muon uses it for more steps: to a loss in about 51% of the time" in told) == expected
    merged = chosen(BYTE_1M, swarm(4), rule="merged_muon")
    adapter = plan_of(merged, replace(BYTE_1M, frozen=10**6), DATA, swarm(4), 8e9)  # a file that somebody wrote
    assert all("--rule" not in advice.text for advice in advise(adapter))


def test_a_round_is_long_enough_for_the_step_of_every_replica() -> None:
    run = chosen(BYTE_10M, swarm(4), rule="merged_muon")
    step_s = MergedMuonSpec().step_flops(BYTE_10M.parameters) / COORDINATOR_FLOAT64_FLOPS
    assert run.round.length_s >= step_s / STEP_PART > 9
    assert run.schedule.learning_rate == 0.01  # with a model of any size
    assert chosen(BYTE_10M, swarm(4), rule="demo").round.length_s < 5


def test_many_nodes_take_local_steps_of_muon() -> None:
    """As in the study, where sixteen nodes take four steps of four samples a round, at 0.015. With four nodes, tokens
    differ by less than two seeds do."""
    few, enough, many = (chosen(BYTE_1M, swarm(nodes, up=THIN)) for nodes in (4, 8, 16))
    assert (few.rule.kind, enough.rule.kind, many.rule.kind) == ("demo", "local_muon", "local_muon")
    assert isinstance(many.rule, LocalMuonSpec)
    assert (many.rule.micro_batch, many.schedule.learning_rate) == (4, 0.015)
    assert many.demo == RunSpec(rule=many.rule).demo
    assert many.schedule.steps == pytest.approx(LOCAL_ROUNDS_MIN, rel=0.1)
    samples = plan_of(many, BYTE_1M, DATA, swarm(16, up=THIN)).step.tokens / 16 / BYTE_1M.context
    assert samples / many.rule.micro_batch == pytest.approx(LOCAL_STEPS, rel=0.15)


@pytest.mark.parametrize(
    ("facts", "of", "tokens"),
    [
        (replace(BYTE_1M, begins=True), swarm(64), LONG),
        (replace(BYTE_1M, frozen=10**9), swarm(64), LONG),
        (replace(BYTE_1M, parameters=BYTE_1M.parameters[:1]), swarm(64), LONG),  # an embedding
        (BYTE_1M, swarm(64, up=THIN), 17e6),  # a sixth of the rounds that local steps need
        (BYTE_1M, swarm(64, up=1e4, down=1e5), LONG),  # a round would be far longer than its steps
        (BYTE_1M, swarm(64, tokens_s=1), LONG),
    ],
    ids=["begins from weights", "adapter", "no matrix", "few rounds", "slow links", "slow nodes"],
)
def test_many_nodes_vote_where_local_steps_do_not_suit(facts: ModelFacts, of: SwarmFacts, tokens: float) -> None:
    assert choice_for(BYTE_1M, swarm(64, up=THIN), Amount(LONG), math.inf).rule.kind == "local_muon"
    assert chosen(facts, of, tokens=tokens).rule.kind == "demo"


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
    for rule, nodes in (("local_muon", "4"), ("demo", "16"), ("merged_muon", "2")):
        run_init("--data", str(data), "--nodes", nodes, "--rule", rule, "--out", str(out), "--force")
        text = out.read_text()
        assert f"--rule {rule} --nodes {nodes}" in text
        assert ("# samples of a local step: " in text) == (rule == "local_muon")
        assert read_run(out).rule.kind == rule
        assert check_file(out).problems == ()


@pytest.mark.parametrize("nodes", [8, 64, 200])
def test_many_nodes_that_vote_are_told_of_local_steps(nodes: int) -> None:
    of = swarm(nodes, up=THIN)
    told = {}
    for rule in ("demo", "local_muon"):
        plan = plan_of(chosen(BYTE_1M, of, rule=rule, tokens=1e9), BYTE_1M, DATA, of, 8e9)
        told[rule] = [advice.text for advice in advise(plan) if advice.key == "rule.kind"]
    assert told["local_muon"] == []
    assert [text for text in told["demo"] if "a learning_rate of about 0.015" in text] == told["demo"] != []
