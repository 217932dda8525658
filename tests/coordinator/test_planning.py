"""Tests of `thinwire-coordinator init`: its figures beside the codec and a real pass, and its run file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.speed.sizes import round_bytes
from bench.speed.synthetic import contract_of, uniform_votes
from support.planning import DATA, LARGE, SMALL, chosen, prepared, run_init, swarm
from thinwire_common.units import human_count
from thinwire_coordinator.cli.check import check
from thinwire_coordinator.cli.parser import parser
from thinwire_coordinator.planning.completion import facts_of
from thinwire_coordinator.planning.exchanges import plan_of
from thinwire_coordinator.planning.facts import DataFacts, ModelFacts, SwarmFacts
from thinwire_coordinator.planning.plan import micro_batch_for, node_memory_bytes
from thinwire_coordinator.planning.problems import check_file, read_run, read_run_file
from thinwire_coordinator.planning.star.choice import TRANSFER_PART
from thinwire_coordinator.planning.star.planner import advise, words_of
from thinwire_coordinator.planning.star.traffic import (
    CALL_BYTES,
    ROW_BYTES_A_NODE,
    contribution_bytes,
    update_bytes,
)
from thinwire_proto import activations
from thinwire_proto.contract import DemoSpec, MergedMuonSpec, Parameter, RoundSpec, RunSpec
from thinwire_proto.contract.models.presets import PRESETS
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Votes, WholeVotes
from thinwire_proto.models import build_decoder, initial_state
from thinwire_proto.wire.codec import encode_update, encode_votes

CODEC_TOLERANCE = 0.1
MATRIX = (Parameter(name="matrix", shape=(512, 512)), Parameter(name="vector", shape=(512,)))


@pytest.mark.parametrize("nodes", [1, 4, 16])
@pytest.mark.parametrize("demo", [DemoSpec(), DemoSpec(k=44, update_topk=352)], ids=["few", "many"])
def test_the_predicted_bytes_are_those_of_the_codec(demo: DemoSpec, nodes: int) -> None:
    layout = layout_of(MATRIX)
    facts = ModelFacts(layout.parameters, layout.matrix_tiles, layout.vector_tiles, 256)
    sent, received = round_bytes(contract_of(MATRIX, demo), nodes)
    assert contribution_bytes(facts, demo) == pytest.approx(sent * facts.trained, rel=CODEC_TOLERANCE)
    assert update_bytes(facts, demo, nodes) == pytest.approx(received * facts.trained, rel=CODEC_TOLERANCE)


@pytest.mark.parametrize(
    ("k", "levels", "nodes"), [*((4096, levels, nodes) for levels in (2, 3, 7) for nodes in (4, 16, 64)), (96, 3, 16)]
)
def test_the_predicted_bytes_of_levels_are_those_of_the_codec(k: int, levels: int, nodes: int) -> None:
    layout, rng = layout_of(MATRIX), np.random.default_rng(1)
    facts = ModelFacts(layout.parameters, layout.matrix_tiles, layout.vector_tiles, 256)
    demo = DemoSpec.model_validate({"k": k, "magnitude": "tile", "precondition": "none", "update_levels": levels})
    merger = merger_of(contract_of(MATRIX, demo), layout, 0)
    for seed in range(nodes):
        votes: Votes = uniform_votes(layout, k, seed)
        codes = np.full(layout.tiles, 90, np.uint8)
        if demo.sends_whole_tiles:
            votes = WholeVotes(rng.choice(np.array([-1, 1], np.int8), layout.components), codes)
        else:
            votes = replace(votes, codes=codes)
        merger.add(votes, 1)
    sent, received = encode_votes(votes, layout), encode_update(Update(0, 0.5, 1.0, merger.merged()), layout)
    assert contribution_bytes(facts, demo) - CALL_BYTES == pytest.approx(len(sent), rel=CODEC_TOLERANCE)
    besides = CALL_BYTES + ROW_BYTES_A_NODE * nodes
    assert update_bytes(facts, demo, nodes) - besides == pytest.approx(len(received), rel=CODEC_TOLERANCE)


@pytest.mark.parametrize("vote_step", [0.5, 1.0, 1.5, 2.0])
def test_the_predicted_bytes_of_levels_of_votes_are_those_of_the_codec(vote_step: float) -> None:
    """Far apart, most components are 0, and Huffman codes spend more than the entropy."""
    layout, rng = layout_of(MATRIX), np.random.default_rng(1)
    facts = ModelFacts(layout.parameters, layout.matrix_tiles, layout.vector_tiles, 256)
    demo = DemoSpec.model_validate(MergedMuonSpec.DEMO_DEFAULTS | {"vote_step": vote_step})
    components = np.round(rng.standard_normal(layout.components) / vote_step)
    levels = components.clip(-demo.vote_levels, demo.vote_levels).astype(np.int8)
    sent = encode_votes(WholeVotes(levels, np.full(layout.tiles, 90, np.uint8), demo.vote_levels), layout)
    assert contribution_bytes(facts, demo) - CALL_BYTES == pytest.approx(len(sent), rel=CODEC_TOLERANCE)


@pytest.mark.parametrize("multiplications", [0, activations.SMALL_MULTIPLICATIONS], ids=["without memory", "really"])
def test_the_predicted_activations_are_those_of_a_real_pass(
    multiplications: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activations, "SMALL_MULTIPLICATIONS", multiplications)
    spec = PRESETS["byte-1m"]
    model = build_decoder(spec)
    model.load_state_dict(initial_state(spec, 1), strict=False)
    own = {tensor.untyped_storage().data_ptr() for _, tensor in model.named_parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.loss(torch.zeros(1, spec.context + 1, dtype=torch.int64))
    real = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert facts_of(spec).activation_bytes == real


def test_more_memory_allows_larger_micro_batches() -> None:
    run, facts = RunSpec(), facts_of(PRESETS["byte-1m"])
    needs = [node_memory_bytes(run, facts, micro_batch) for micro_batch in (1, 2, 4, 8)]
    assert needs == sorted(needs)
    assert [micro_batch_for(run, facts, need) for need in needs] == [1, 2, 4, 8]
    assert micro_batch_for(run, facts, 0) == 1


@pytest.mark.parametrize("facts", [SMALL, LARGE], ids=["1M", "124M"])
@pytest.mark.parametrize("nodes", [1, 4, 50])
@pytest.mark.parametrize("mbit", [1, 10, 1000])
@pytest.mark.parametrize("tokens_s", [100.0, 10_000.0, 1e6])
def test_transfers_fit_into_the_chosen_round(facts: ModelFacts, nodes: int, mbit: float, tokens_s: float) -> None:
    of = swarm(nodes, mbit * 1e6, mbit * 1e6, tokens_s)
    run = chosen(facts, of)
    step = plan_of(run, facts, DATA, of).step
    assert step.exchange_s <= 1.05 * TRANSFER_PART * run.round.length_s
    assert step.tokens >= nodes * facts.context * 0.99
    assert run.schedule.warmup_steps < run.schedule.steps


def test_the_run_trains_the_wanted_tokens() -> None:
    of = swarm()
    for run, wanted in ((chosen(SMALL, of, tokens=5e6), 5e6), (chosen(SMALL, of), 20 * SMALL.trained)):
        assert plan_of(run, SMALL, DATA, of).tokens == pytest.approx(wanted, rel=0.01)
    assert chosen(SMALL, of, steps=77).schedule.steps == 77


def test_little_data_are_passed_over_four_times_at_most() -> None:
    few = DataFacts({"text": 10**6}, 2 * 10**6, vocabulary=256)
    run = chosen(SMALL, swarm(), few)
    assert 3.5 < plan_of(run, SMALL, few, swarm()).passes <= 4


@pytest.mark.parametrize(
    ("rounds", "tokens", "seconds"),
    [
        (RoundSpec(samples=8), 8 * 256, 2.548),  # it trains, and then waits for the network
        (RoundSpec(samples=8, base_age_max=1), 8 * 256, 2.048),  # it trains meanwhile
        (RoundSpec(samples=8, length_ms=1000), 1000, 1.0),  # its share is not done in time
        (RoundSpec(pace="clock", samples=8, length_ms=4000), 4000, 4.0),
        (RoundSpec(pace="clock", samples=4, length_ms=4000), 3 * 4 * 256, 4.0),  # its lease is used up
        (RoundSpec(pace="clock", samples=8, length_ms=2000, base_age_max=0), 1500, 2.0),
    ],
)
def test_a_round_of_each_pace(rounds: RoundSpec, tokens: int, seconds: float) -> None:
    """A node of 1,000 tokens/s whose transfers take half a second."""
    of = swarm(nodes=1, tokens_s=1000)
    run = RunSpec(round=rounds)
    plain = plan_of(run, SMALL, DATA, of).step
    half = SwarmFacts(1, 8 * plain.sent_bytes / 0.25, 8 * plain.received_bytes / 0.25, 1000)
    step = plan_of(run, SMALL, DATA, half).step
    assert step.exchange_s == pytest.approx(0.5)
    assert step.tokens == pytest.approx(tokens)
    assert step.seconds == pytest.approx(seconds)


@pytest.mark.parametrize("tokens_s", [19_057.0, 1e6])
def test_nodes_that_wait_are_told_of_and_how_to_use_the_time(
    tokens_s: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rounds last two seconds at least, and these nodes do the samples of one in much less."""
    of = swarm(nodes=2, tokens_s=tokens_s)
    run = chosen(SMALL, of)
    plan = plan_of(run, SMALL, DATA, of)
    (told,) = advise(plan)
    share = "16% of a round, 0.3 s of 2.0 s" if tokens_s < 1e6 else "less than 1% of a round, 6.1 ms of 2.0 s"
    assert (told.key, f"a node computes for {share}, and then waits" in told.text) == ("round.samples", True)
    found = re.search(r"samples = ([\d,]+) uses the whole round, and a step is then ([\d.]+[kM]) tokens", told.text)
    assert found is not None
    samples = int(found[1].replace(",", ""))
    fuller = run.model_copy(update={"round": run.round.model_copy(update={"samples": samples})})
    step = plan_of(fuller, SMALL, DATA, of).step
    assert step.computing_s == pytest.approx(step.seconds)
    assert human_count(step.tokens)[:1] == found[2][:1]
    assert advise(plan_of(fuller, SMALL, DATA, of)) == []
    out = tmp_path / "run.toml"
    options = ("--tokens-per-second", str(tokens_s), "--nodes", "2", "--out", str(out), "--force")
    run_init(*options)
    assert ("note: amend: at the end, a node computes for" in capsys.readouterr().out) == (tokens_s == 1e6)
    run_init(*options, "--growth", "1")
    assert "note: round.samples: a node computes for" in capsys.readouterr().out
    assert re.search(r"#   computing +.*% of a round, .*; then a node waits", out.read_text())


def test_init_writes_amendments_that_check_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.toml"
    options = ("--nodes", "2", "--tokens-per-second", "1e5")
    run_init("--rule", "merged_muon", *options, "--growth", "16", "--out", str(out))
    told, (run, planned) = capsys.readouterr().out, read_run_file(out)
    assert "--growth 16" in out.read_text()
    assert "schedule.learning_rate" not in told  # four times the known one, for sixteen times the known batch
    assert [one.at for one in planned] == sorted(one.at or 0 for one in planned)
    assert [one.changes["round.samples"] for one in planned] == [times * run.round.samples for times in (2, 4, 8, 16)]
    check(parser().parse_args(["check", str(out), *options]))
    again = capsys.readouterr().out
    rows = [line for line in told.splitlines() if line.strip() and "note:" not in line and "written" not in line]
    assert [line for line in rows if line in again.splitlines()] == rows
    assert "0 errors" in again or "no errors" in again


def test_nodes_that_compute_nearly_all_the_time_are_told_nothing() -> None:
    of = swarm(nodes=2, tokens_s=2_500)
    plan = plan_of(chosen(SMALL, of), SMALL, DATA, of)
    assert plan.step.computing_s > 0.75 * plan.step.seconds
    assert (advise(plan), words_of(plan).of_run) == ([], [])


def test_a_model_that_is_tuned_gets_a_smaller_rate_and_fewer_passes() -> None:
    of, few = swarm(), DataFacts({"text": 10**6}, 2 * 10**6, vocabulary=256)
    scratch, tuned, adapter = SMALL, replace(SMALL, begins=True), replace(SMALL, frozen=10**9)
    runs = [chosen(facts, of, few) for facts in (scratch, tuned, adapter)]
    rates = [run.schedule.learning_rate for run in runs]
    assert rates == [2e-3, 2e-4, 1.3e-4]
    passes = [plan_of(run, facts, few, of).passes for run, facts in zip(runs, (scratch, tuned, adapter), strict=True)]
    assert passes == pytest.approx([4, 2, 2], rel=0.1)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_file_for_every_preset_has_no_error(preset: str, tmp_path: Path) -> None:
    data, out = prepared(tmp_path / "data"), tmp_path / "runs" / "run.toml"
    out.parent.mkdir()
    run_init("--model", preset, "--data", str(data), "--out", str(out), "--machine", "a100", "--nodes", "8")
    checked = check_file(out)
    assert checked.problems == ()
    run = checked.run
    assert run is not None
    assert run == read_run(out)
    assert run.model.vocabulary == 1024
    assert run.model == PRESETS[preset].model_copy(update={"vocabulary": 1024})
    assert Path(getattr(run.data, "folder", "")).resolve() == data


def test_a_run_has_room_for_the_nodes_that_it_is_planned_for(tmp_path: Path) -> None:
    run_init("--rule", "demo", "--nodes", "2000", "--out", str(tmp_path / "run.toml"))
    checked = check_file(tmp_path / "run.toml")
    assert checked.run is not None
    assert checked.run.round.nodes_max == 2000


def test_data_that_a_run_could_not_train_on_get_no_file(tmp_path: Path) -> None:
    data, out = prepared(tmp_path / "data", each=100), tmp_path / "run.toml"
    with pytest.raises(ConfigError, match=r"is no data for this model: .* of more than model\.context = 256"):
        run_init("--data", str(data), "--out", str(out))
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "lama-1m"), "there is no such preset or folder; did you mean llama-1m"),
        (("--lora",), "--lora needs --model FOLDER"),
        (("--lora", "--model", "byte-1m"), "--lora needs --model FOLDER"),
        (("--lora", "--model", "Qwen/Qwen3-8B"), "none of this name in the Hub's cache; .*: hf download Qwen/Qwen3-8B"),
        (("--data", "nothing"), "nothing is no folder"),
        (("--data", "."), "has no manifest.json, so it has no prepared data; make one with"),
        (("--out", "none/run.toml"), "there is no folder none"),
        (("--tokens", "4e18"), "4e\\+18 tokens are more than 2,147,483,648 steps"),
        (("--tokens-per-second", "1e-9"), "1.77e\\+07 tokens are more than 2,147,483,648 steps"),
        (
            ("--exchange", "gossip", "--rule", "demo"),
            "--rule demo is not for --exchange gossip; take one of adamw, muon",
        ),
        (("--rule", "muon"), "--rule muon is not for --exchange star; take one of demo,"),
        (("--exchange", "gossip", "--tokens", "4e18"), "tokens are more than 2,147,483,648 steps"),
        (("--rule", "demo", "--nodes", "40000"), "a run with demo has at most 4,095 nodes, and there are 40,000"),
    ],
)
def test_wrong_input_is_explained(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        run_init(*words)
