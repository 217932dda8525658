"""`make science` plans the same budget for every arm, reports what was run, and continues an interrupted study."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.convergence.arms import (
    ADAMW,
    ARMS,
    DEFAULT,
    GOSSIP_ARMS,
    MAIN_ARMS,
    REFERENCE,
    rate_at,
)
from bench.convergence.checkpoint import Checkpoint, RunState
from bench.convergence.plan import Study, next_runs, runs_at_least, sweep_of
from bench.convergence.report import write_report
from bench.convergence.run import RESULTS, Result, Run, Size, settings_of, train, write
from bench.convergence.study import StudyError, results_in
from bench.convergence.summaries import summaries_of
from bench.convergence.text import stdlib
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


@pytest.mark.parametrize(("arm", "bits"), [("gossip-sign", 1), ("gossip-accum", 32)])
def test_arms_without_a_centre_count_the_bytes_of_their_messages(arm: str, bits: int) -> None:
    size = Size("byte-1m", 8, 8)
    result = train(Run(arm, 1e-3, 1, 4, 2 * 8 * 256, size), torch.device("cpu"))
    assert result.single_node_loss is not None
    assert math.isfinite(result.single_node_loss)
    assert result.up == result.down
    assert bits < 8 * result.up / (2 * result.parameters) < 1.05 * bits  # in each of two rounds
