"""`make science` plans the same budget for every arm, reports what was run, and continues an interrupted study."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from bench.convergence.__main__ import run_all
from bench.convergence.arms import (
    ADAMW,
    ARMS,
    DEFAULT,
    GOSSIP_ARMS,
    MAIN_ARMS,
    RATE_FACTOR,
    RATES_MAX,
    REFERENCE,
)
from bench.convergence.plan import RESULTS, Study, StudyError, next_runs, results_in, sweep_rates
from bench.convergence.report import summaries_of, write_report
from bench.convergence.run import Result, Run, Size, train
from bench.convergence.text import stdlib
from bench.studies import append, carry_out

STUDY = Study((ADAMW, REFERENCE, DEFAULT), Size(), 1000, 4000, (1, 2), other_nodes=(16,))
TINY = Study((DEFAULT,), Size(samples=4, held_out=8), 1024, 1024, (1, 2))
"""One in a hundred is held out, by a hash of its path. With so many, at least one is."""


def rate_at(arm: str, offset: int) -> float:
    return float(f"{ARMS[arm].rate * RATE_FACTOR**offset:.3g}")


def result_of(run: Run, loss: float) -> Result:
    return Result(run, {}, [(run.tokens, loss)], loss, 10.0, 20.0, 1000, 1.0, "c" * 64, "2")


def completed(study: Study, best_offset: dict[str, int]) -> list[Result]:
    """Simulate a study: the loss of a rate is its distance from the arm's best rate."""
    results: list[Result] = []
    while runs := next_runs(study, results):
        for run in runs:
            best = rate_at(run.arm, best_offset[run.arm])
            results.append(result_of(run, 1 + abs(math.log(run.rate / best))))
    return results


def test_a_sweep_extends_until_the_best_rate_is_not_at_an_edge() -> None:
    results = completed(STUDY, {ADAMW: 0, REFERENCE: -2, DEFAULT: 1})
    for arm, offset in ((ADAMW, 0), (REFERENCE, -2), (DEFAULT, 1)):
        assert sweep_rates(STUDY.sweep(arm, results), ARMS[arm].rate) == ([], rate_at(arm, offset))


def test_the_number_of_rates_is_bounded() -> None:
    results = completed(STUDY, {ADAMW: 9, REFERENCE: 0, DEFAULT: 0})
    rates = {result.run.rate for result in results if result.run.arm == ADAMW and result.run.tokens == 1000}
    assert len(rates) == RATES_MAX


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
    for result in results:
        append(tmp_path / RESULTS, replace(result, settings=ARMS[result.run.arm].settings))
    write_report(STUDY, tmp_path)
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


@pytest.mark.timeout(600)  # trainings in processes that import torch
def test_an_interrupted_study_continues_with_the_same_results(tmp_path: Path) -> None:
    """Real processes and real training: stopped after one result, continued, and one run repeated.

    The rates beside the best one are given, as an earlier study would have left them.
    """
    arm, corpus, file = ARMS[DEFAULT], stdlib().hash, tmp_path / RESULTS
    rates = [rate_at(DEFAULT, offset) for offset in (-1, 1)]
    for rate in rates:
        given = result_of(TINY.sweep_run(DEFAULT, rate), 100.0)
        append(file, replace(given, settings=arm.settings, corpus=corpus))
    first = next(carry_out(train, lambda: next_runs(TINY, results_in(tmp_path, TINY)), 2))
    assert first.run == TINY.sweep_run(DEFAULT, arm.rate)
    append(file, first)
    run_all(TINY, tmp_path, 2)
    results = results_in(tmp_path, TINY)
    assert next_runs(TINY, results) == []
    assert len(file.read_text().splitlines()) == len(results) == 4  # no run is repeated
    again = train(first.run)
    assert again.curve == first.curve
    assert 0 < first.up < first.down


def test_a_line_that_is_no_result_is_named(tmp_path: Path) -> None:
    append(tmp_path / RESULTS, result_of(TINY.sweep_run(DEFAULT, ARMS[DEFAULT].rate), 2.0))
    with (tmp_path / RESULTS).open("a") as file:
        file.write('{"run": {"arm": "ad')
    with pytest.raises(StudyError, match=r"runs\.jsonl:2: is no result: .*; remove the line"):
        results_in(tmp_path, TINY)


def test_a_result_with_other_settings_is_refused(tmp_path: Path) -> None:
    result = result_of(TINY.sweep_run(DEFAULT, ARMS[DEFAULT].rate), 2.0)
    append(tmp_path / RESULTS, replace(result, settings={"kind": "votes"}))
    assert len(results_in(tmp_path, TINY)) == 1
    append(tmp_path / RESULTS, replace(result, settings={"kind": "votes", "demo": {"k": 1}}))
    with pytest.raises(StudyError, match="another demo than the arm has now"):
        results_in(tmp_path, TINY)


@pytest.mark.parametrize(
    ("arm", "bits"),
    [
        ("gossip-sign", 1),
        ("gossip-sign-noise", 1),
        ("gossip-dense", 32),
        ("gossip-sign-muon", 1),
        ("gossip-sign-muon-pull", 1),
    ],
)
def test_arms_without_a_centre_count_the_bytes_of_their_messages(arm: str, bits: int) -> None:
    size = Size("byte-1m", 8, 8)
    result = train(Run(arm, 1e-3, 1, 4, 2 * 8 * 256, size))
    assert result.single_node_loss is not None
    assert math.isfinite(result.single_node_loss)
    assert result.up == result.down
    assert bits < 8 * result.up / (2 * result.parameters) < 1.05 * bits  # in each of two rounds
