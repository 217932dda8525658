"""`make science` plans the same budget for every arm, reports what was run, and continues an interrupted study."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.convergence.arms import (
    ADAMW,
    ARMS,
    DEFAULT,
    GOSSIP_ARMS,
    MAIN_ARMS,
    NODES_MATTER,
    RATES_MAX,
    REFERENCE,
    rate_at,
)
from bench.convergence.checkpoint import Checkpoint, RunState
from bench.convergence.decentralized import GossipMethod
from bench.convergence.method import SwarmSize
from bench.convergence.plan import Study, best_rate, next_runs, runs_at_least, sweep_of
from bench.convergence.problem import Problem
from bench.convergence.report import page, write_report
from bench.convergence.run import RESULTS, Result, Run, Size, checkpoint_of, settings_of, train, write
from bench.convergence.scaling import SCALINGS
from bench.convergence.scaling import page as scaling_page
from bench.convergence.study import Progress, StudyError, results_in, run_all
from bench.convergence.summaries import ArmSummary, front_of, summaries_of
from bench.convergence.text import stdlib
from thinwire_proto.contract import ScheduleSpec
from thinwire_proto.gossip.copies import Copies
from thinwire_proto.models import BYTE_PRESETS

STUDY = Study((ADAMW, REFERENCE, DEFAULT), Size(), 1000, 4000, (1, 2), other_nodes=(16,))
TINY = Study((DEFAULT,), Size(samples=4, held_out=8), 1024, 1024, (1, 2))
"""One in a hundred is held out, by a hash of its path. With so many, at least one is."""


def result_of(run: Run, loss: float) -> Result:
    return Result(run, {}, [(run.tokens, loss)], loss, 10.0, 20.0, 1000, 1.0, "c" * 64, "2")


def completed(study: Study, best_offset: dict[str, int]) -> list[Result]:
    """Simulate a study: the loss of a rate is its distance from the arm's best rate."""
    results: list[Result] = []
    while runs := next_runs(study, results):
        assert set(runs) <= set(runs_at_least(study, results))  # the estimate includes all of them
        for run in runs:
            best = rate_at(ARMS[run.arm].rate, best_offset[run.arm])
            results.append(result_of(run, 1 + abs(math.log(run.rate / best))))
    return results


def test_a_sweep_extends_until_the_best_rate_is_not_at_an_edge() -> None:
    results = completed(STUDY, {ADAMW: 0, REFERENCE: -2, DEFAULT: 1})
    for arm, offset in ((ADAMW, 0), (REFERENCE, -2), (DEFAULT, 1)):
        sweep = sweep_of(STUDY, arm, results)
        assert (sweep.best, sweep.missing, sweep.at_edge) == (rate_at(ARMS[arm].rate, offset), (), False)


def test_the_number_of_rates_is_bounded_and_an_edge_is_reported() -> None:
    results = completed(STUDY, {ADAMW: 9, REFERENCE: 0, DEFAULT: 0})
    assert sweep_of(STUDY, ADAMW, results).at_edge
    rates = {result.run.rate for result in results if result.run.arm == ADAMW and result.run.tokens == 1000}
    assert len(rates) == RATES_MAX
    assert "(at the edge)" in page(STUDY, results, summaries_of(STUDY, results))


def test_of_rates_that_ran_to_the_end_the_best_counts() -> None:
    """The sweep's best may be too high for a long run. A rate that did not run to the end beside it is no evidence."""
    results = completed(STUDY, dict.fromkeys(MAIN_ARMS, 0))
    swept, lower = ARMS[ADAMW].rate, rate_at(ARMS[ADAMW].rate, -1)
    assert best_rate(STUDY, ADAMW, results) == swept
    longer = result_of(STUDY.final_run(ADAMW, lower, 1, STUDY.nodes), 0.9)
    assert best_rate(STUDY, ADAMW, [*results, longer]) == lower
    assert next_runs(STUDY, [*results, longer]) == [STUDY.final_run(ADAMW, lower, 2, STUDY.nodes)]
    assert best_rate(STUDY, ADAMW, [*results, replace(longer, loss=1.1)]) == swept
    assert best_rate(STUDY, ADAMW, [*results, replace(longer, loss=math.nan)]) == swept
    only_swept = [result for result in results if result.run.tokens == STUDY.sweep_tokens]
    assert best_rate(STUDY, ADAMW, [*only_swept, longer]) == swept
    assert best_rate(STUDY, ADAMW, [longer]) is None
    lowest = rate_at(swept, -2)
    for loss, best in ((0.8, lowest), (1.0, swept)):  # towards the sweep's best it gets worse, or better
        whole = [longer, result_of(STUDY.final_run(ADAMW, lowest, 1, STUDY.nodes), loss)]
        assert best_rate(STUDY, ADAMW, [*only_swept, *whole]) == best


def test_a_rate_that_diverges_is_never_the_best() -> None:
    runs = [STUDY.sweep_run(ADAMW, rate) for rate in ARMS[ADAMW].rates]
    losses = [2.0, 1.9, math.nan]
    results = [result_of(run, loss) for run, loss in zip(runs, losses, strict=True)]
    assert sweep_of(STUDY, ADAMW, results).best == ARMS[ADAMW].rates[1]


def test_main_arms_run_on_every_seed_and_number_of_nodes_at_equal_tokens() -> None:
    summaries = summaries_of(STUDY, completed(STUDY, dict.fromkeys(MAIN_ARMS, 0)))
    assert [(summary.arm, summary.nodes, len(summary.results)) for summary in summaries] == [
        (ADAMW, 4, 2),
        (REFERENCE, 4, 2),
        (REFERENCE, 16, 1),
        (DEFAULT, 4, 2),
        (DEFAULT, 16, 1),
    ]
    assert {result.run.tokens for summary in summaries for result in summary.results} == {4000}
    assert ADAMW not in NODES_MATTER


def test_arms_without_a_centre_run_on_every_seed_and_only_with_numbers_of_nodes_that_make_sense() -> None:
    """Of 16 samples, 16 nodes have one each, which has no halves; and one node has nobody to mix with."""
    study = replace(STUDY, arms=GOSSIP_ARMS, other_nodes=(16, 1))
    summaries = summaries_of(study, completed(study, dict.fromkeys(GOSSIP_ARMS, 0)))
    at_four = [(summary.arm, len(summary.results)) for summary in summaries if summary.nodes == 4]
    assert at_four == [(arm, 2) for arm in GOSSIP_ARMS]
    others = {(summary.arm, summary.nodes) for summary in summaries if summary.nodes != 4}
    assert others == {(arm, 16) for arm in GOSSIP_ARMS if not arm.endswith("noise")}


def test_the_report_contains_the_table_and_the_plots(tmp_path: Path) -> None:
    results = completed(STUDY, dict.fromkeys(MAIN_ARMS, 0))
    write_report(STUDY, results, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| adamw | 4 | 0.003 | 2 | 1.0000 | 0.0000 | +0.00% |" in text
    for name in ("loss-tokens.png", "loss-bytes.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_swarm_is_compared_with_a_ring_all_reduce_among_as_many_nodes() -> None:
    """The simulated runs send and receive 30 bytes for 1,000 parameters, in four steps of 1,024 tokens."""
    study = replace(STUDY, size=Size(samples=4), tokens=4096)
    by = {(one.arm, one.nodes): one for one in summaries_of(study, completed(study, dict.fromkeys(MAIN_ARMS, 0)))}
    four, sixteen = by[DEFAULT, 4], by[DEFAULT, 16]
    assert four.bytes_a_parameter == sixteen.bytes_a_parameter == 30 / 1000 / 4
    assert (four.times_fewer, sixteen.times_fewer) == (12 / 0.0075, 15 / 0.0075)


def test_arms_are_compared_on_the_seeds_that_both_have() -> None:
    def summary(losses: dict[int, float]) -> ArmSummary:
        runs = (Run("adamw", 2e-3, seed, 4, 4096) for seed in losses)
        return ArmSummary("adamw", 4, tuple(result_of(run, losses[run.seed]) for run in runs))

    three = summary({1: 1.0, 2: 2.0, 3: 3.0})
    assert summary({1: 1.1}).relative_loss(three) == pytest.approx(0.1)
    assert summary({2: 2.2, 3: 3.3, 4: 9.0}).relative_loss(three) == pytest.approx(0.1)
    assert summary({4: 1.0}).relative_loss(three) is None


def test_the_front_has_the_arms_that_no_cheaper_one_beats() -> None:
    def summary(arm: str, loss: float, sent: float, seed: int = 1) -> ArmSummary:
        one = replace(result_of(Run(arm, 1e-3, seed, 4, 4096), loss), up=sent, down=0.0)
        return ArmSummary(arm, 4, (one,))

    adamw = summary(ADAMW, 1.0, 9000.0)
    few, many, worse, best = (
        summary(arm, loss, sent) for arm, loss, sent in (("a", 1.5, 10), ("b", 1.2, 90), ("c", 1.3, 95), ("d", 0.9, 95))
    )
    elsewhere = summary("e", 0.1, 5.0, seed=2)  # no seed in common with AdamW
    assert front_of([adamw, best, worse, many, few, elsewhere], adamw) == [few, many, best]


def test_scaling_compares_each_number_of_nodes_with_adamw_on_the_same_batch(tmp_path: Path) -> None:
    """AdamW has a loss of 1 for each sample of the batch, and all others are 1% above; so a wrong baseline shows."""
    for one in SCALINGS:
        for study in {one.study, one.baseline}:
            for result in completed(study, dict.fromkeys(study.arms, 0)):
                above = 1.0 if result.run.arm == ADAMW else 1.01
                loss = study.size.samples * above * result.loss
                told = replace(result, loss=loss, settings=settings_of(ARMS[result.run.arm]))
                write(told, tmp_path)
    for arm, nodes in ((DEFAULT, "1 4 8 16 64 1 4 16"), ("gossip-sign-noise", "16")):
        rows = [line.split(" | ") for line in scaling_page(tmp_path).splitlines() if f" | {arm} | " in line]
        final = [row for row in rows if len(row) == 9]
        assert [row[0].strip("| ") for row in final] == nodes.split()
        assert all(row[5].startswith("+1.00%") for row in final)
    assert "still to be made" not in scaling_page(tmp_path)


def run_in(line: str) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(line)["run"]
    return run | {"size": Size(**run["size"])}


def continue_study(folder: Path, study: Study) -> list[Result]:
    return asyncio.run(run_all(study, folder, 2, lambda progress: None))


@pytest.mark.timeout(600)  # four trainings, each in a process that imports torch
def test_an_interrupted_study_continues_with_the_same_results(tmp_path: Path) -> None:
    """Real processes and real training: stopped while the second run trains, continued, and one run repeated.

    The rates beside the best one are given, as an earlier study would have left them.
    """
    arm, corpus = ARMS[DEFAULT], stdlib().hash
    for offset in (-1, 1):
        given = result_of(TINY.sweep_run(DEFAULT, rate_at(arm.rate, offset)), 100.0)
        write(replace(given, settings=settings_of(arm), corpus=corpus), tmp_path)
    best = TINY.sweep_run(DEFAULT, arm.rate)

    class Enough(Exception):
        pass

    def stop(progress: Progress) -> None:
        if len(progress.done) == 3:
            assert progress.left == [TINY.final_run(DEFAULT, arm.rate, 2, TINY.nodes)]
            raise Enough

    with pytest.raises(Enough):
        asyncio.run(run_all(TINY, tmp_path, 2, stop))
    first = [result for result in results_in(tmp_path, TINY) if result.run == best]
    assert first
    file = tmp_path / RESULTS
    finished = file.read_text()
    results = continue_study(tmp_path, TINY)
    assert next_runs(TINY, results) == []
    assert file.read_text().startswith(finished)
    assert len(file.read_text().splitlines()) == len(results)  # no run is repeated
    left = [line for line in file.read_text().splitlines(keepends=True) if Run(**run_in(line)) != best]
    file.write_text("".join(left))
    again = [result for result in continue_study(tmp_path, TINY) if result.run == best]
    assert again[0].curve == first[0].curve
    assert 0 < first[0].up < first[0].down


class StoppedError(Exception):
    pass


class StopsAfterTwoRounds(Checkpoint):
    def save_if_due(self, state: RunState) -> None:
        super().save_if_due(state)
        if state.next_round == 2:
            raise StoppedError


ONE_OF_EACH_KIND = {arm.kind: name for name, arm in ARMS.items()} | {
    "gossip, corrected": "gossip-sign-noise",
    "gossip, windows": "gossip-accum",
    "gossip, Muon": "gossip-sign-muon",
    "gossip, pulled": "gossip-sign-muon-pull",
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Size:
    """A model of one layer, for tests in which only the order of things matters."""
    model = BYTE_PRESETS["byte-1m"].model_copy(update={"layers": 1, "width": 64, "hidden": 64, "context": 64})
    monkeypatch.setitem(BYTE_PRESETS, "small", model)
    return Size("small", samples=4, held_out=8)


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND.values(), ids=ONE_OF_EACH_KIND)
def test_a_run_that_is_stopped_goes_on_from_its_checkpoint(name: str, tmp_path: Path, small: Size) -> None:
    arm = ARMS[name]
    run = Run(name, 1e-3, 1, 2, 4 * 4 * small.spec.context * arm.local_steps, small)
    of_run = (tmp_path, run.name, settings_of(arm), stdlib().hash, 0.0)
    cpu = torch.device("cpu")
    with pytest.raises(StoppedError):
        train(run, cpu, StopsAfterTwoRounds(*of_run))
    checkpoint = Checkpoint(*of_run)
    resumed = train(run, cpu, checkpoint)
    assert replace(resumed, seconds=0.0) == replace(train(run, cpu), seconds=0.0)
    checkpoint.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_a_processor_is_not_taken_up_on_a_card(
    tmp_path: Path, small: Size, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run would go on there on the processor, and its result would name the card."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    run = Run(ADAMW, 1e-3, 1, 2, 4 * 4 * small.spec.context, small)
    here, there = (checkpoint_of(run, tmp_path, torch.device(kind)) for kind in ("cpu", "cuda"))
    here._path.touch()
    assert there.load() is None
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_other_settings_is_removed(tmp_path: Path, small: Size) -> None:
    run = Run(ADAMW, 1e-3, 1, 2, 4 * 4 * small.spec.context, small)
    with pytest.raises(StoppedError):
        train(run, torch.device("cpu"), StopsAfterTwoRounds(tmp_path, run.name, {"beta": 0.9}, "c" * 64, 0.0))
    assert len(list(tmp_path.iterdir())) == 1
    assert Checkpoint(tmp_path, run.name, {"beta": 0.5}, "c" * 64).load() is None
    assert list(tmp_path.iterdir()) == []


def test_results_on_another_text_are_refused(tmp_path: Path) -> None:
    run = TINY.sweep_run(DEFAULT, ARMS[DEFAULT].rate)
    for number, text in enumerate("cd"):
        write(replace(result_of(replace(run, seed=number), 2.0), corpus=text * 64), tmp_path)
    with pytest.raises(StudyError, match="another --into"):
        results_in(tmp_path, TINY)


def test_a_line_that_is_no_result_is_named(tmp_path: Path) -> None:
    write(result_of(TINY.sweep_run(DEFAULT, ARMS[DEFAULT].rate), 2.0), tmp_path)
    with (tmp_path / RESULTS).open("a") as file:
        file.write('{"run": {"arm": "ad')
    with pytest.raises(StudyError, match=r"runs\.jsonl:2: is no result: .*; remove the line"):
        results_in(tmp_path, TINY)


def test_a_result_with_other_settings_is_refused(tmp_path: Path) -> None:
    result = result_of(TINY.sweep_run(DEFAULT, ARMS[DEFAULT].rate), 2.0)
    write(replace(result, settings={"kind": "votes"}), tmp_path)
    assert len(results_in(tmp_path, TINY)) == 1
    write(replace(result, settings={"kind": "votes", "demo": {"k": 1}}), tmp_path)
    with pytest.raises(StudyError, match="another demo than the arm has now"):
        results_in(tmp_path, TINY)


def test_without_a_centre_a_node_that_drifts_away_shows_in_its_own_loss() -> None:
    """The mean model may look well while single nodes diverge, so the page has both."""
    run = STUDY.final_run(DEFAULT, ARMS[DEFAULT].rate, 1, 4)
    results = [*completed(STUDY, dict.fromkeys(MAIN_ARMS, 0))]
    together = [replace(result, single_node_loss=result.loss) for result in results]
    apart = [replace(result, single_node_loss=5.16 if result.run == run else result.loss) for result in results]
    pages = [page(STUDY, found, summaries_of(STUDY, found)) for found in (together, apart)]
    assert "| 3.0800 |" in pages[1]  # the mean of both seeds
    assert "| 3.0800 |" not in pages[0]


def test_the_study_pulls_gradients_as_a_node_does(small: Size) -> None:
    arm, nodes = ARMS["gossip-sign-pull"], 4
    problem = Problem(small.spec, stdlib(), 1, torch.device("cpu"))
    method = GossipMethod(problem, arm, ScheduleSpec(learning_rate=1e-2, warmup_steps=1, steps=9), SwarmSize(nodes, 4))
    for step in range(3):
        method.round(step, step * 4)
    copies, out = Copies(method._layout), torch.empty(method._layout.parameters)
    for peer in {source for source, target in method._copies if target == 0}:
        copies.join(peer, method._copies[peer, 0].flat)
    copies.pull(method._x[0], arm.pull, 3, out)
    assert len(copies.edges) == 2
    assert torch.equal(method._pulled(0), out)
    assert not torch.equal(method._pulled(0), method._x[0])


@pytest.mark.parametrize(
    ("arm", "bits"),
    [
        ("gossip-sign", 1),
        ("gossip-sign-noise", 1),
        ("gossip-accum", 32),
        ("gossip-sign-muon", 1),
        ("gossip-sign-pull", 1),
    ],
)
def test_arms_without_a_centre_count_the_bytes_of_their_messages(arm: str, bits: int) -> None:
    size = Size("byte-1m", 8, 8)
    result = train(Run(arm, 1e-3, 1, 4, 2 * 8 * 256, size), torch.device("cpu"))
    assert result.single_node_loss is not None
    assert math.isfinite(result.single_node_loss)
    assert result.up == result.down
    assert bits < 8 * result.up / (2 * result.parameters) < 1.05 * bits  # in each of two rounds
