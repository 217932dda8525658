"""Arms of the study whose rounds grow train on the same samples, and their rates are those that `amend` gives."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import bench.convergence.run as convergence_run
from bench.convergence import all_reduce, compressed
from bench.convergence.arms import ADAMW, ARMS, MERGED_FINE, MERGED_MUON
from bench.convergence.growth import schedules_of, stages_of
from bench.convergence.problem import Problem
from bench.convergence.run import Run, Size, train
from bench.convergence.unfinished import Training, save
from thinwire_proto.contract import ScheduleSpec
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Levels, WholeVotes
from thinwire_proto.wire.codec import encode_update, encode_votes

GROWTH = ((1, 0.25), (2, 0.25), (4, 0.5))
RUN = Run("growing", 1e-3, 1, 4, 8 * 4 * 256, Size(samples=4, held_out=8))


class Interrupted(Exception):
    """A study that ends in the middle of a run."""


@pytest.mark.parametrize("of", [ADAMW, MERGED_MUON])
def test_each_sample_is_trained_on_once_also_after_an_interruption(
    of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARMS, "growing", replace(ARMS[of], growth=GROWTH))
    trained: list[range] = []
    gradients = Problem.gradients

    def noted(problem: Problem, first: int, samples: int) -> object:
        trained.append(range(first, first + samples))
        return gradients(problem, first, samples)

    monkeypatch.setattr(Problem, "gradients", noted)
    monkeypatch.setattr(convergence_run, "CURVE_POINTS", 2)
    whole = train(RUN)
    assert [position for part in trained for position in part] == list(range(32))
    assert len(trained) == 4 * (1 if of == ADAMW else 4)  # two rounds, one and one
    assert whole.curve[-1][0] == RUN.tokens

    def save_and_stop(training: Training, path: Path) -> None:
        save(training, path)
        if training.rounds == 3:
            raise Interrupted

    monkeypatch.setattr(convergence_run, "SAVE_EVERY_S", 0.0)
    monkeypatch.setattr(convergence_run, "save", save_and_stop)
    with pytest.raises(Interrupted):
        train(RUN, tmp_path / "run.pt")
    assert replace(train(RUN, tmp_path / "run.pt"), seconds=whole.seconds) == whole


def test_votes_have_fine_levels_once_rounds_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARMS, "growing", replace(ARMS[MERGED_FINE], growth=GROWTH, fine_from=2))
    travelled: list[tuple[int, int]] = []

    def noted(update: Update, layout: TileLayout) -> bytes:
        assert isinstance(update.merged, Levels)
        travelled.append((update.merged.levels, int(abs(update.merged.values).max())))
        return encode_update(update, layout)

    votes: list[int] = []

    def noted_votes(one: WholeVotes, layout: TileLayout) -> bytes:
        votes.append(int(abs(one.signs).max()))
        return encode_votes(one, layout)

    monkeypatch.setattr(compressed, "encode_update", noted)
    monkeypatch.setattr(compressed, "encode_votes", noted_votes)
    train(RUN)
    assert travelled == [(7, 7)] * 2 + [(15, 15)] * 2
    assert votes == [3] * 8 + [9] * 8


def test_runs_of_the_study_have_the_rates_of_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARMS, "growing", replace(ARMS[ADAMW], growth=GROWTH))
    rates: list[float] = []

    def noted(schedule: ScheduleSpec, step: int) -> float:
        rates.append(learning_rate(schedule, step))
        return rates[-1]

    monkeypatch.setattr(all_reduce, "learning_rate", noted)
    train(RUN)
    assert rates == pytest.approx([1e-3, 1e-3, 1e-3 * 2**0.5, 2e-3], rel=0.01)


def test_the_rate_stays_at_its_peak_times_the_root_of_the_growth_until_the_last_stage() -> None:
    stages = stages_of(GROWTH, 160)
    schedules = schedules_of(ScheduleSpec(learning_rate=0.01, warmup_steps=10, steps=stages[-1].ends), GROWTH, stages)
    assert [(one.begins, one.ends, one.step) for one in stages] == [(0, 40, 0), (40, 60, 40), (60, 80, 80)]
    for (before, after), stage in zip(pairwise(schedules), stages[1:], strict=True):
        rates = [learning_rate(schedule, stage.begins) for schedule in (before, after)]
        assert rates[1] == pytest.approx(rates[0] * 2**0.5, rel=0.01)
        assert rates[1] == pytest.approx(0.01 * stage.times**0.5, rel=0.01)
    assert learning_rate(schedules[-1], 79) == pytest.approx(0.1 * 0.02, rel=0.1)


def test_without_growth_all_rounds_are_one_stage() -> None:
    (stage,) = stages_of((), 7)
    assert (stage.begins, stage.ends, stage.steps_before(3)) == (0, 7, 3)
