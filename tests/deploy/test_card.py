"""The runs for a card, on the CPU with a tiny model: right gradients, right arms, and results that are resumed."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.card.__main__ import Texts, work
from bench.card.arms import ARMS, make_method
from bench.card.corpus import pack, read
from bench.card.model import CardProblem
from bench.card.plan import QUICK, CardRun, Item, Line, next_runs
from bench.card.run import carry_out
from bench.convergence.method import Growing, SwarmSize
from bench.convergence.text import Text
from bench.studies import append
from bench.studies import read as read_results
from thinwire_proto.contract import ScheduleSpec

CPU = torch.device("cpu")
SCHEDULE = ScheduleSpec(learning_rate=0.01, warmup_steps=1, steps=4)


def a_text() -> Text:
    drawn = np.random.default_rng(1).integers(0, 256, 1 << 14, dtype=np.uint8)
    return Text(drawn, drawn[: 1 << 11], "0" * 64)


def a_problem() -> CardProblem:
    return CardProblem(QUICK, a_text(), 1, CPU)


@pytest.mark.parametrize("arm", ARMS)
def test_each_arm_learns(arm: str) -> None:
    problem = a_problem()
    before = float(problem.held_out_loss(64))
    method = make_method(problem, ARMS[arm], SCHEDULE, SwarmSize(4, 8))
    for step in range(4):
        method.train(step, 0)
    assert float(problem.held_out_loss(64)) != before
    assert all(torch.isfinite(tensor).all() for tensor in problem.parameters.values())
    assert 0 < method.bits <= 32
    assert method.up > 0


def test_a_larger_round_takes_the_mean_of_as_many_gradients() -> None:
    """In passes as large as the first round, so that it fits where that did."""
    problems = [a_problem(), a_problem()]
    for problem, samples in zip(problems, (4, 16), strict=True):
        method = make_method(problem, ARMS["muon-half"], SCHEDULE, SwarmSize(4, samples))
        assert isinstance(method, Growing)
        method.grow(SCHEDULE, SwarmSize(4, 16), 2)
        method.train(0, 0)
    for one, other in zip(*(problem.parameters.values() for problem in problems), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_rounds_that_grow_send_once_a_round() -> None:
    """Of 32 steps, 2 rounds have one, 1 has two, 1 has four and 3 have eight."""
    run = CardRun("quick", "muon-half-growing", 1, 0.01, 512 * 32)
    line = carry_out(run, a_text(), CPU, math.inf)
    assert line.up == pytest.approx(4 * 7 / run.tokens)
    assert line.curve[-1][0] == run.tokens
    assert [run.arm for run in next_runs([Item("quick", run.arm, 1, run.tokens)], [])] == ["muon-half"] * 3


def test_held_out_packages_are_not_trained_on(tmp_path: Path) -> None:
    """Nor are packages that a folder of another one holds."""
    for number in range(40):
        for name in ("a", "b"):
            file = tmp_path / "in" / f"package{number}" / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"# {name} of {number}.\n" * 200)
    installed = tmp_path / "in" / "site-packages" / "other" / "c.py"
    installed.parent.mkdir(parents=True)
    installed.write_text("# nowhere\n" * 200)
    pack(tmp_path / "text", (tmp_path / "in",), bytes_max=1 << 20, vocabulary=300)
    packed = read(tmp_path / "text")
    held_out, train = (set(re.findall(rb"of (\d+)", part)) for part in (packed.held_out, packed.train))
    assert held_out
    assert not held_out & train
    assert len(held_out | train) == 40
    assert b"nowhere" not in packed.train + packed.held_out


def test_results_are_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(tmp_path / "text", (Path(__file__).parent,), bytes_max=200_000, vocabulary=300)
    packed = read(tmp_path / "text")
    assert packed.as_tokens().train.max() < 300
    texts, results, items = Texts(tmp_path / "text"), tmp_path / "card.jsonl", [Item("quick", "adamw", 1, 512 * 6)]
    work(items, texts, CPU, results, math.inf)
    lines = read_results(results, Line)
    assert len(lines) >= 4
    assert lines[-1].run.tokens == 512 * 6
    results.unlink()
    for line in lines[:-1]:
        append(results, line)
    work(items, texts, CPU, results, math.inf)
    again = read_results(results, Line)
    assert [line.run for line in again] == [line.run for line in lines]
    assert again[-1].loss == pytest.approx(lines[-1].loss, abs=1e-4)
    work(items, texts, CPU, results, time.monotonic() - 1)
    assert read_results(results, Line) == again
    assert isinstance(lines[0].run, CardRun)
