"""`make science` plans the same budget for every arm, reports what was run, and continues an interrupted study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bench.convergence.run as convergence_run
from bench.convergence.__main__ import INTO, run_all
from bench.convergence.arms import (
    ADAMW,
    ARMS,
    DEFAULT,
    FINE_GROWING,
    FINER_GROWING,
    LOCAL_MUON,
    MERGED_FINE,
    MERGED_MUON,
    MUON,
    MUON_GROWING,
    MUON_GROWING_16,
    MUON_HALF,
    REFERENCE,
)
from bench.convergence.method import SwarmSize
from bench.convergence.plan import (
    FOUR_LONG,
    FOUR_SHORT,
    ITEMS,
    PAIRS_MAX,
    RATES_MAX,
    RESULTS,
    SINGLES,
    SIXTEEN_LONG,
    Cell,
    Item,
    Rates,
    StudyError,
    lower,
    middle_of,
    next_runs,
    rates_of,
    results_in,
    runs_left,
    sweep,
)
from bench.convergence.problem import Problem
from bench.convergence.report import (
    best_dense,
    few_page,
    many_page,
    slope_of,
    summaries_of,
    tokens_for_equal_loss,
    write_quick,
)
from bench.convergence.run import METHODS, Result, Run, Size, train
from bench.convergence.text import stdlib
from bench.convergence.unfinished import Training, save
from bench.studies import append, carry_out
from thinwire_planner.methods.all_reduce import GROWING_TOKENS
from thinwire_planner.methods.gossip import codec_of
from thinwire_planner.methods.local_steps import TOKENS
from thinwire_planner.methods.star import RULES
from thinwire_proto.contract import ScheduleSpec

SWEEP = Cell(Size(), 4, 1000)
SHORT = Cell(Size(), 4, 4000, SWEEP)
TINY = Cell(Size(samples=4, held_out=8), 4, 1024)
"""One in a hundred is held out, by a hash of its path. With so many, at least one is."""


def result_of(run: Run, loss: float) -> Result:
    return Result(run, ARMS[run.arm].settings, [(run.tokens, loss)], loss, 10.0, 20.0, 1000, 1.0, "c" * 64, "2")


def rates_at(arm: str, offset: int, outer_offset: int = 0) -> Rates:
    rate, outer = middle_of(arm)
    return Rates(float(f"{rate * 1.5**offset:.3g}"), float(f"{outer * 1.5**outer_offset:.3g}"))


def away(run: Run, best: Rates) -> float:
    return abs(math.log(run.rate / best.rate)) + abs(math.log((run.outer or 1) / (best.outer or 1)))


def completed(items: Sequence[Item], best: dict[str, Rates]) -> list[Result]:
    """Simulate a study: the loss of rates is their distance from the arm's best."""
    results: list[Result] = []
    while runs := next_runs(items, results):
        results += [result_of(run, 1 + away(run, best[run.arm])) for run in runs]
    return results


def test_a_sweep_extends_until_the_best_rates_are_not_at_an_edge() -> None:
    best = {ADAMW: rates_at(ADAMW, 0), MUON: rates_at(MUON, -2), "diloco": rates_at("diloco", 1, -2)}
    results = completed([Item(arm, SWEEP) for arm in best], best)
    for arm, rates in best.items():
        assert sweep(SWEEP.losses(arm, results), middle_of(arm)) == ([], rates)


@pytest.mark.parametrize(("arm", "most"), [(ADAMW, RATES_MAX), ("sparseloco", PAIRS_MAX)])
def test_the_number_of_rates_is_bounded(arm: str, most: int) -> None:
    results = completed([Item(arm, SWEEP)], {arm: rates_at(arm, 9, 9 * (arm != ADAMW))})
    assert len(results) == most


def test_a_longer_run_takes_its_rates_from_the_shorter_one_and_then_tries_lower_ones() -> None:
    """Simulated: the longer run is best two rates below the sweep's best."""
    results: list[Result] = []
    for is_settled, expected in ((False, [0]), (True, [0, -1, -2, -3])):
        items = [Item(ADAMW, SHORT, is_settled=is_settled)]
        while runs := next_runs(items, results):
            for run in runs:
                best = rates_at(ADAMW, 0 if run.tokens == SWEEP.tokens else -2)
                results.append(result_of(run, 1 + away(run, best)))
        ran = [result.run.rate for result in results if result.run.tokens == SHORT.tokens]
        assert ran == [rates_at(ADAMW, offset).rate for offset in expected]
    assert rates_of(ADAMW, SHORT, results) == ([], rates_at(ADAMW, -2))
    assert lower(ADAMW, rates_at(ADAMW, -2)) == rates_at(ADAMW, -3)


def test_a_whole_sweep_of_its_own_needs_no_shorter_one() -> None:
    results = [result_of(SHORT.run(MUON, rates_at(MUON, offset)), 1 + abs(offset)) for offset in (-1, 0, 1)]
    assert next_runs([Item(MUON, SHORT, is_settled=True)], results) == []


def test_a_run_of_a_dense_arm_serves_all_numbers_of_nodes() -> None:
    runs = {cell.run(ADAMW, middle_of(ADAMW)) for cell in (SHORT, replace(SHORT, nodes=2), replace(SHORT, nodes=16))}
    assert len(runs) == 1


def test_arms_are_compared_with_the_better_of_the_dense_ones() -> None:
    best = {arm: rates_at(arm, 0) for arm in (ADAMW, MUON, DEFAULT)}
    results = [
        replace(one, loss=one.loss * (0.5 if one.run.arm == MUON else 1.0))
        for one in completed([Item(arm, SHORT, seed) for arm in best for seed in (1, 2)], best)
    ]
    summaries = summaries_of(SHORT, results)
    dense = best_dense(summaries)
    assert dense is not None
    assert dense.arm == MUON
    rows = {summary.arm: summary.cells(dense) for summary in summaries}
    assert rows[DEFAULT][:7] == ["4", DEFAULT, "0.002", "2", "1.0000", "0.0000", "+100.00%"]
    without = [one for one in results if one.run.arm != MUON]
    assert best_dense(summaries_of(SHORT, without)) is None


def test_the_tokens_for_an_equal_loss_follow_from_two_horizons() -> None:
    """The dense loss halves with four times the tokens, so an arm with twice the loss needs four times the tokens."""
    best = {arm: rates_at(arm, 0) for arm in (ADAMW, MUON, DEFAULT)}
    scale = {(SHORT.tokens, DEFAULT): 2.0, (SWEEP.tokens, MUON): 2.0, (SWEEP.tokens, ADAMW): 2.0}
    results = [
        replace(one, loss=one.loss * scale.get((one.run.tokens, one.run.arm), 1.0))
        for one in completed([Item(arm, SHORT) for arm in best], best)
    ]
    slope = slope_of(SHORT, results)
    assert slope is not None
    assert slope == pytest.approx(0.5)
    summaries = {one.arm: one for one in summaries_of(SHORT, results)}
    above = summaries[DEFAULT].above(summaries[MUON])
    assert above is not None
    assert tokens_for_equal_loss(above, slope) == pytest.approx(4.0)
    assert slope_of(SWEEP, results) is None
    two = replace(SHORT, nodes=2, rates_from=SHORT)
    assert slope_of(two, results) == slope  # its rates are from as many tokens, and theirs from fewer
    larger = Size(preset="byte-3m")
    results += [replace(one, run=replace(one.run, size=larger)) for one in results]
    assert slope_of(replace(SHORT, size=larger), results) is None  # the shorter cell is of another model


def test_the_planner_has_the_tokens_of_the_study() -> None:
    """At the long horizon. Where an arm ran at the short one alone, it is taken to end as far above as there."""
    results, cells = results_in(Path(__file__).parents[2] / INTO), {4: FOUR_LONG, 16: SIXTEEN_LONG}

    def tokens(arm: str, cell: Cell) -> float:
        summaries = summaries_of(cell, results)
        dense, (found,) = best_dense(summaries), [one for one in summaries if one.arm == arm]
        slope = slope_of(SIXTEEN_LONG if cell == SIXTEEN_LONG else FOUR_LONG, results)
        assert dense is not None
        assert slope is not None
        above = found.above(dense)
        assert above is not None
        return tokens_for_equal_loss(above, slope)

    arms = (DEFAULT, LOCAL_MUON, MERGED_MUON, MERGED_FINE, FINE_GROWING, FINER_GROWING)
    for rule, arm in zip(RULES, arms, strict=True):
        assert rule.tokens == pytest.approx({nodes: tokens(arm, cells[nodes]) for nodes in rule.tokens}, abs=0.006), arm
    assert pytest.approx(tokens("muloco", FOUR_SHORT), abs=0.006) == TOKENS
    growing = {times: tokens(arm, FOUR_LONG) for times, arm in ((8, MUON_GROWING), (16, MUON_GROWING_16))}
    assert pytest.approx(growing, abs=0.006) == GROWING_TOKENS
    for codec, arm in (("dense", "gossip-dense-muon"), ("sign", "gossip-sign-muon-pull")):
        beside = tokens(arm, SINGLES) / tokens(LOCAL_MUON, SINGLES)
        assert codec_of(codec).tokens == pytest.approx(beside, abs=0.006)


def test_a_swarm_is_compared_with_a_ring_all_reduce_among_as_many_nodes() -> None:
    """The simulated runs send 10 bytes and receive 20 for 1,000 parameters, in four steps of 1,024 tokens."""
    for nodes, ring in ((4, 12), (16, 15)):
        cell = Cell(Size(samples=4), nodes, 4096)
        results = completed([Item(arm, cell) for arm in (DEFAULT, ADAMW)], {arm: rates_at(arm, 0) for arm in ARMS})
        of_ring, ours = summaries_of(cell, results)
        assert ours.traffic == (10 / 1000 / 4096, 20 / 1000 / 4096)
        assert ours.times_fewer == pytest.approx(ring / (30 / 1000 / 4))
        assert of_ring.times_fewer == 1
    growing = Cell(Size(samples=4), 4, 512 * 1024)
    found = summaries_of(growing, completed([Item(MUON_GROWING, growing)], {arm: rates_at(arm, 0) for arm in ARMS}))
    rounds = 32 + 16 + 16 + 48
    assert {one.arm: one.times_fewer for one in found}[MUON_GROWING] == pytest.approx(512 / rounds)


def test_the_pages_have_all_results_and_say_what_is_left() -> None:
    results = completed(ITEMS[:1], {MUON_HALF: rates_at(MUON_HALF, 0)})
    text = few_page(results)
    assert f"| 4 | {MUON_HALF} | 0.015 | 1 | 1.0000 |" in text
    assert f"about {len(runs_left(ITEMS, results))} are left" in text
    assert "No run so far" in many_page(results)


def test_a_rate_of_a_sweep_that_is_not_complete_has_a_star() -> None:
    results = [result_of(FOUR_SHORT.run(REFERENCE, middle_of(REFERENCE)), 1.4)]
    assert f"| 4 | {REFERENCE} | 0.0015 * | 1 |" in few_page(results)


@pytest.mark.timeout(600)  # trainings in processes that import torch
def test_an_interrupted_study_continues_with_the_same_results(tmp_path: Path) -> None:
    """Real processes and real training: stopped after one result, continued, and one run repeated.

    The rates beside the best one are given, as an earlier study would have left them.
    """
    corpus, file, items = stdlib().hash, tmp_path / RESULTS, [Item(DEFAULT, TINY, 2)]
    for offset in (-1, 1):
        append(file, replace(result_of(TINY.run(DEFAULT, rates_at(DEFAULT, offset)), 100.0), corpus=corpus))
    first = next(carry_out(train, lambda: next_runs(items, results_in(tmp_path)), 2))
    assert first.run == TINY.run(DEFAULT, middle_of(DEFAULT))
    append(file, first)
    run_all(items, tmp_path, 2, write_quick)
    results = results_in(tmp_path)
    assert next_runs(items, results) == []
    assert len(file.read_text().splitlines()) == len(results) == 4  # no run is repeated
    again = train(first.run)
    assert again.curve == first.curve
    assert 0 < first.up < first.down


class Interrupted(Exception):
    """A study that ends in the middle of a run."""


@pytest.mark.parametrize("arm", [ADAMW, DEFAULT, MERGED_FINE, "gossip-sign-muon"])
def test_an_interrupted_run_continues_with_the_same_bits(
    arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(arm, 1e-3, 1, 4, 4 * 4 * 256, Size(samples=4, held_out=8))
    state = tmp_path / "unfinished" / "run.pt"

    def save_and_stop(training: Training, path: Path) -> None:
        save(training, path)
        raise Interrupted

    whole = train(run)
    monkeypatch.setattr(convergence_run, "SAVE_EVERY_S", 0.0)
    monkeypatch.setattr(convergence_run, "save", save_and_stop)
    for _ in range(3):
        with pytest.raises(Interrupted):
            train(run, state)
    monkeypatch.setattr(convergence_run, "save", save)
    saved = torch.load(state, weights_only=False)
    assert saved.rounds == 3
    assert replace(train(run, state), seconds=whole.seconds) == whole


@pytest.mark.parametrize("damage", ["cut", "settings"])
def test_a_run_begins_again_where_what_was_saved_does_not_fit(damage: str, tmp_path: Path) -> None:
    run, state = Run(ADAMW, 1e-3, 1, 4, 2 * 4 * 256, Size(samples=4, held_out=8)), tmp_path / "run.pt"
    problem = Problem(run.size.spec, stdlib(), 7, torch.device("cpu"))
    save(
        Training(
            {"corpus": "another"}, problem, METHODS["adamw"](problem, ARMS[ADAMW], ScheduleSpec(), SwarmSize(4, 4))
        ),
        state,
    )
    if damage == "cut":
        state.write_bytes(state.read_bytes()[:1000])
    assert replace(train(run, state), seconds=0.0) == replace(train(run), seconds=0.0)


def test_a_line_that_is_no_result_is_named(tmp_path: Path) -> None:
    append(tmp_path / RESULTS, result_of(TINY.run(DEFAULT, middle_of(DEFAULT)), 2.0))
    with (tmp_path / RESULTS).open("a") as file:
        file.write('{"run": {"arm": "ad')
    with pytest.raises(StudyError, match=r"runs\.jsonl:2: is no result: .*; remove the line"):
        results_in(tmp_path)


def test_a_result_with_other_settings_is_refused(tmp_path: Path) -> None:
    result = result_of(TINY.run(DEFAULT, middle_of(DEFAULT)), 2.0)
    append(tmp_path / RESULTS, replace(result, settings={"kind": "votes"}))
    assert len(results_in(tmp_path)) == 1
    append(tmp_path / RESULTS, replace(result, settings={"kind": "votes", "demo": {"k": 1}}))
    with pytest.raises(StudyError, match="another demo than the arm has now"):
        results_in(tmp_path)


def test_a_result_of_an_arm_that_is_gone_is_named(tmp_path: Path) -> None:
    result = result_of(TINY.run(DEFAULT, middle_of(DEFAULT)), 2.0)
    append(tmp_path / RESULTS, replace(result, run=replace(result.run, arm="gone")))
    with pytest.raises(StudyError, match="no longer has; remove its line"):
        results_in(tmp_path)
