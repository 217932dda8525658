"""The rule that `thinwire-coordinator init` chooses, with its steps and rounds; and what `check` says of it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from support.planning import DATA, chosen, facts_of_preset, prepared, run_init, swarm
from thinwire_coordinator.cli.parser import parser
from thinwire_coordinator.planning.exchanges import plan_of, planner
from thinwire_coordinator.planning.facts import ModelFacts, SwarmFacts
from thinwire_coordinator.planning.problems import check_file, read_run
from thinwire_coordinator.planning.settings import Wanted, known_batch
from thinwire_coordinator.planning.star.choice import (
    CORE_FLOAT64_FLOPS,
    LOCAL_ROUNDS_MIN,
    ROUND_S_MAX,
    ROUND_S_MIN,
    STEP_PART,
    TRANSFER_PART,
    Amount,
    choice_for,
)
from thinwire_coordinator.planning.star.planner import advise
from thinwire_planner.methods.growth import GROWTHS
from thinwire_planner.methods.star import LOCAL_STEPS
from thinwire_proto.contract import CorpusSpec, LocalMuonSpec, MergedMuonSpec, RunSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.models import PRESETS
from thinwire_proto.muon import orthogonal

BYTE_1M = facts_of_preset("byte-1m")
BYTE_10M = facts_of_preset("byte-10m")
MANY = 100_000
"""Rounds. Where their number is given, they do not grow."""
THIN = 0.6e6
"""Bits a second: too few for all gradients, and enough for the signs of local steps."""


@pytest.mark.parametrize("nodes", [2, 4, 64])
def test_gradients_travel_where_links_and_machines_have_the_time(nodes: int) -> None:
    run = chosen(BYTE_1M, swarm(nodes, up=2e6), growth=1)
    assert run.rule.kind == "merged_muon"
    assert run.schedule.learning_rate == 0.01
    assert run.demo == RunSpec(rule=run.rule).demo
    step = plan_of(run, BYTE_1M, DATA, swarm(nodes, up=2e6), 8e9).step
    assert step.computing_s + step.exchange_s / TRANSFER_PART <= step.seconds == ROUND_S_MIN
    longer = chosen(BYTE_1M, swarm(nodes, up=1.5e6))
    assert (longer.rule.kind, longer.round.length_s) == ("merged_muon", 1.25 * ROUND_S_MIN)
    assert chosen(BYTE_1M, swarm(nodes, up=THIN), steps=1000).rule.kind != "merged_muon"  # not for twice as long
    slow = chosen(BYTE_10M, swarm(16), steps=1000)  # two cores take longer for the step than a round
    assert slow.rule.kind == "local_muon"


@pytest.mark.parametrize("nodes", [2, 4, 64])
def test_gradients_travel_in_finer_levels_where_that_takes_no_time_from_a_round(nodes: int, tmp_path: Path) -> None:
    fine, slower = (chosen(BYTE_1M, of, growth=1) for of in (swarm(nodes), swarm(nodes, up=2e6)))
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


def test_finer_levels_may_lengthen_a_round_by_less_than_they_save_in_tokens() -> None:
    """A round of 2.4 s in place of 2 s, at 1.12 in place of 1.59 times the tokens with four nodes, and 1.01 in place of
    1.14 with sixteen (docs/convergence)."""
    few, many = (chosen(BYTE_1M, swarm(nodes, up=3e6), steps=MANY) for nodes in (4, 16))
    assert (few.demo.vote_levels, few.round.length_s) == (9, 2.5)
    assert (many.demo.vote_levels, many.round.length_s) == (3, 2.0)


def test_nodes_that_wait_with_merged_gradients_are_told_of_local_steps() -> None:
    """Four steps of four samples take 0.7 s, and so the two seconds of the shortest round: 2.19 · 2 s / 4 in place of
    1.12 · 2 s, by the tokens of docs/convergence."""
    for kind, expected in (("merged_muon", True), ("demo", False)):
        plan = plan_of(chosen(BYTE_1M, swarm(4), rule=kind, growth=1), BYTE_1M, DATA, swarm(4), 8e9)
        (told,) = [advice.text for advice in advise(plan) if advice.key == "round.samples"] or [""]
        assert ("--rule local_muon uses it for more steps: to a loss in about 49% of the time" in told) == expected
    wanted = Wanted(PRESETS["byte-1m"], CorpusSpec(), BYTE_1M, DATA, swarm(4), rule="merged_muon")
    merged, planned = planner("star").choose(wanted)
    told = "".join(one.text for one in advise(plan_of(merged, BYTE_1M, DATA, swarm(4), 8e9, planned)))
    assert "--rule" not in told  # rounds that grow take a fifth of the time
    adapter = plan_of(merged, replace(BYTE_1M, frozen=10**6), DATA, swarm(4), 8e9)  # a file that somebody wrote
    assert all("--rule" not in advice.text for advice in advise(adapter))


def test_a_round_is_long_enough_for_the_step_of_every_replica() -> None:
    run = chosen(BYTE_10M, swarm(4), rule="merged_muon")
    step_s = MergedMuonSpec().step_flops(BYTE_10M.parameters) / (2 * CORE_FLOAT64_FLOPS)
    assert run.round.length_s >= step_s / STEP_PART > 9
    cards = swarm(4, up=1e9, down=1e9, tokens_s=1e6)
    few, many = (chosen(BYTE_10M, replace(cards, coordinator_cores=n), rule="merged_muon") for n in (2, 8))
    assert many.round.length_s < few.round.length_s / 3
    plan = plan_of(run, BYTE_10M, DATA, swarm(4), 8e9)
    assert all(advice.key != "round.length_ms" for advice in advise(plan))
    short = run.model_copy(update={"round": run.round.model_copy(update={"length_ms": 4000})})
    told = [one.text for one in advise(plan_of(short, BYTE_10M, DATA, swarm(4), 8e9)) if one.key == "round.length_ms"]
    assert any("own step takes 4.7 s on 2 cores, and a round lasts 4.0 s" in text for text in told)
    assert run.schedule.learning_rate == 0.0067  # with a model of any size, where rounds grow to 16 times
    assert chosen(BYTE_10M, swarm(4), rule="demo").round.length_s < 5


def test_many_nodes_take_local_steps_of_muon() -> None:
    """As in the study, where sixteen nodes take four steps of four samples a round, at 0.015. With four nodes, tokens
    differ by less than two seeds do."""
    few, enough, many = (chosen(BYTE_1M, swarm(nodes, up=THIN), steps=LOCAL_ROUNDS_MIN) for nodes in (4, 8, 16))
    assert (few.rule.kind, enough.rule.kind, many.rule.kind) == ("demo", "local_muon", "local_muon")
    many = chosen(BYTE_1M, swarm(16, up=THIN), rule="local_muon")
    assert isinstance(many.rule, LocalMuonSpec)
    assert (many.rule.micro_batch, many.schedule.learning_rate) == (4, 0.015)
    assert many.demo == RunSpec(rule=many.rule).demo
    samples = plan_of(many, BYTE_1M, DATA, swarm(16, up=THIN)).step.tokens / 16 / BYTE_1M.context
    assert samples / many.rule.micro_batch == pytest.approx(LOCAL_STEPS, rel=0.15)


@pytest.mark.parametrize(
    ("facts", "of", "steps"),
    [
        (replace(BYTE_1M, begins=True), swarm(64), MANY),
        (replace(BYTE_1M, frozen=10**9), swarm(64), MANY),
        (replace(BYTE_1M, parameters=BYTE_1M.parameters[:1]), swarm(64), MANY),  # an embedding
        (BYTE_1M, swarm(64, up=THIN), LOCAL_ROUNDS_MIN // 6),
        (BYTE_1M, swarm(64, up=1e4, down=1e5), MANY),  # a round would be far longer than its steps
        (BYTE_1M, swarm(64, tokens_s=1), MANY),
    ],
    ids=["begins from weights", "adapter", "no matrix", "few rounds", "slow links", "slow nodes"],
)
def test_many_nodes_vote_where_local_steps_do_not_suit(facts: ModelFacts, of: SwarmFacts, steps: int) -> None:
    assert choice_for(BYTE_1M, swarm(64, up=THIN), Amount(0.0, MANY), math.inf).rule.kind == "local_muon"
    assert chosen(facts, of, steps=steps).rule.kind == "demo"


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


def test_rounds_grow_as_far_as_there_are_enough_and_a_step_has_use_for_it() -> None:
    """From 4,096 tokens of two nodes on."""
    for nodes, asked, times in (
        (2, {}, 16),
        (2, {"tokens": 4096 * 5 * 700}, 8),  # fewer rounds would learn less
        (2, {"tokens": 4096 * 2.5 * 700}, 2),
        (2, {"tokens": 4096 * 1.8 * 700}, 1),
        (2, {"steps": 4000}, 1),
        (2, {"growth": 1}, 1),
        (2, {"growth": 4, "steps": 100}, 4),
        (64, {"tokens": 1e9}, 4),  # a sample of each is four times the known batch
    ):
        of = swarm(nodes, tokens_s=100_000)
        choice = Wanted(PRESETS["byte-1m"], CorpusSpec(), BYTE_1M, DATA, of, rule="merged_muon", **asked)
        run, planned = planner("star").choose(choice)
        plan = plan_of(run, BYTE_1M, DATA, of, 8e9, planned)
        samples = [stage.run.round.samples for stage in plan.stages]
        assert samples == [run.round.samples * larger for larger, _ in GROWTHS[times]]
        assert [stage.step.tokens for stage in plan.stages] == [256 * nodes * each for each in samples]
        levels = [3, 3, 3, 9, 9] if times == 16 else [9] * len(samples)
        assert [stage.run.demo.vote_levels for stage in plan.stages] == levels
        assert plan.tokens == pytest.approx(asked.get("tokens", plan.tokens), rel=0.01)
        assert plan.steps == asked.get("steps", plan.steps) == run.schedule.steps
        parts = [stage.steps * stage.step.tokens / plan.tokens for stage in plan.stages]
        assert parts == pytest.approx([share for _, share in GROWTHS[times]], abs=0.01)
        assert run.schedule.learning_rate == (0.0067 if times == 16 else 0.01)
        rates = [learning_rate(stage.run.schedule, stage.begins) for stage in plan.stages[1:]]
        before = [learning_rate(a.run.schedule, b.begins) for a, b in pairwise(plan.stages)]
        assert [b / a for a, b in zip(before, rates, strict=True)] == pytest.approx([2**0.5] * len(rates), rel=0.01)


def test_the_option_offers_all_growths_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert [parser().parse_args(["init", "--growth", str(times)]).growth for times in GROWTHS] == list(GROWTHS)
    with pytest.raises(SystemExit):
        parser().parse_args(["init", "--growth", "0"])
    assert ", ".join(map(str, GROWTHS)) in capsys.readouterr().err


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_a_run_of_few_rounds_has_amendments_that_it_can_have(steps: int, tmp_path: Path) -> None:
    out = tmp_path / "run.toml"
    run_init("--rule", "merged_muon", "--growth", "16", "--steps", str(steps), "--out", str(out))
    assert check_file(out).problems == ()
    planned = check_file(out).planned
    assert all(0 < (one.at or 0) < steps for one in planned)
    changed = {key: value for one in planned for key, value in one.changes.items()}
    assert changed.get("demo.vote_levels") == (9 if steps > 1 else None)
    assert changed.get("schedule.shape", read_run(out).schedule.shape) == "cosine"
    assert len({one.at for one in planned}) == len(planned)


@pytest.mark.parametrize("nodes", [1, 4, 500])
@pytest.mark.parametrize("up", [0.5e6, 1e6, 3e6, 20e6])
@pytest.mark.parametrize("tokens_s", [1e3, 1e5])
def test_rounds_of_every_size_have_room_for_their_transfers(nodes: int, up: float, tokens_s: float) -> None:
    of = swarm(nodes, up=up, down=2 * up, tokens_s=tokens_s)
    wanted = Wanted(PRESETS["byte-1m"], CorpusSpec(), BYTE_1M, DATA, of, rule="merged_muon", tokens=1e9)
    run, planned = planner("star").choose(wanted)
    plan = plan_of(run, BYTE_1M, DATA, of, 8e9, planned)
    assert (len(plan.stages) > 1) == (nodes < 500)
    for stage in plan.stages:
        assert stage.step.exchange_s <= TRANSFER_PART * stage.step.seconds
    assert [stage.step.seconds for stage in plan.stages] == sorted(stage.step.seconds for stage in plan.stages)
    assert not [one for one in advise(plan) if one.key.endswith("length_ms") or "length_ms:" in one.text]


def test_rounds_grow_also_where_there_is_no_room_for_the_sum_of_nineteen_levels() -> None:
    facts, growths = facts_of_preset("llama-124m"), []
    for nodes in (455, 456):
        choice = choice_for(facts, swarm(nodes, tokens_s=1e5), Amount(2e10), math.inf, "merged_muon")
        growths.append((choice.growth, choice.demo.vote_levels))
    assert growths[0][0] == growths[1][0] > 1
    assert [levels for _, levels in growths] == [9, 3]


def test_machines_that_need_long_for_a_batch_still_wait_for_gradients() -> None:
    """A node's part of the known batch takes it longer than the longest round."""
    facts, of = facts_of_preset("llama-124m"), swarm(2, up=1e8, down=1e8, tokens_s=100)
    assert known_batch(facts.trained) / 2 > ROUND_S_MAX * 100
    choice = choice_for(facts, of, Amount(2.5e9), math.inf)
    assert choice.rule.kind == "merged_muon"
    assert choice.samples * facts.context / 100 == pytest.approx(ROUND_S_MAX, rel=0.02)
    assert choice.stretch < 1.2


def test_rounds_that_grow_beyond_their_length_become_longer() -> None:
    of = swarm(4, tokens_s=1000)
    wanted = Wanted(PRESETS["byte-1m"], CorpusSpec(), BYTE_1M, DATA, of, rule="merged_muon", growth=8)
    run, planned = planner("star").choose(wanted)
    plan = plan_of(run, BYTE_1M, DATA, of, 8e9, planned)
    assert plan.stages[-1].step.seconds > 2 * plan.step.seconds
    assert [stage.step.tokens / 1024 for stage in plan.stages] == [4, 8, 16, 32]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rule": "demo"}, "known with merged_muon alone; give --rule merged_muon too"),
        ({"exchange": "gossip"}, "gossip has none"),
    ],
)
def test_rounds_that_grow_are_refused_where_nobody_knows_them(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        chosen(BYTE_1M, swarm(), growth=2, **asked)


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


@pytest.mark.parametrize(("nodes", "rate"), [(8, "0.01"), (64, "0.01"), (200, "0.015")])
def test_many_nodes_that_vote_are_told_of_steps_of_muon(nodes: int, rate: str) -> None:
    of = swarm(nodes, up=THIN)
    told = {}
    for rule in ("demo", "local_muon"):
        plan = plan_of(chosen(BYTE_1M, of, rule=rule, tokens=1e9), BYTE_1M, DATA, of, 8e9)
        told[rule] = [advice.text for advice in advise(plan) if advice.key == "rule.kind"]
    assert told["local_muon"] == []
    assert [text for text in told["demo"] if f"a learning_rate of about {rate} " in text] == told["demo"] != []
