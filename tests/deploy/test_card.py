"""The runs for a card, on the CPU with a tiny model: right gradients, right arms, and results that are resumed."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.card.__main__ import Texts, work
from bench.card.arms import ARMS, MergedMuon, entropy, make_method, tile_step
from bench.card.corpus import pack, read
from bench.card.model import CardProblem
from bench.card.page import write_page
from bench.card.plan import QUICK, CardRun, Item, Line
from bench.convergence.method import SwarmSize
from bench.convergence.plan import sweep_rates
from bench.convergence.problem import Problem
from bench.convergence.text import Text
from bench.studies import append
from bench.studies import read as read_results
from thinwire_proto.contract import ScheduleSpec
from thinwire_proto.muon import orthogonal

CPU = torch.device("cpu")
SCHEDULE = ScheduleSpec(learning_rate=0.01, warmup_steps=1, steps=4)


def a_text() -> Text:
    drawn = np.random.default_rng(1).integers(0, 256, 1 << 14, dtype=np.uint8)
    return Text(drawn, drawn[: 1 << 11], "0" * 64)


def a_problem() -> CardProblem:
    return CardProblem(QUICK, a_text(), 1, CPU)


@pytest.mark.parametrize("is_own", [False, True])
def test_gradients_of_each_node_are_those_of_the_study(is_own: bool) -> None:
    ours = a_problem()
    text = a_text()
    theirs = Problem(QUICK, Text(text.train, text.held_out, text.hash), 1, CPU)
    tokens = ours._samples(0, 6)
    theirs._samples = lambda first, samples: tokens[first : first + samples]  # type: ignore[method-assign]
    local = None
    if is_own:
        torch.manual_seed(1)
        local = {name: one + 0.1 * torch.randn(3, *one.shape) for name, one in ours.parameters.items()}
    loss, gradients = ours.gradients_of_shares(0, 3, 2, local)
    expected_loss, expected = theirs.gradients_of_shares(0, 3, 2, local)
    assert float(loss) == pytest.approx(expected_loss, rel=1e-5)
    assert set(gradients) == set(expected)
    for name, gradient in expected.items():
        assert float((gradients[name] - gradient).norm() / gradient.norm()) < 1e-4, name


@pytest.mark.parametrize("shape", [(2, 128, 192), (1, 100, 70)])
def test_a_tile_is_orthogonalized_by_itself(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = tile_step(matrices)
    assert found.shape == shape
    for row in range(0, shape[1], 64):
        for column in range(0, shape[2], 64):
            tile = matrices[0, row : row + 64, column : column + 64]
            expected = orthogonal(tile) * 0.2 * 8
            assert torch.allclose(found[0, row : row + 64, column : column + 64], expected, atol=1e-3)


def test_fine_steps_are_the_dense_arm_and_coarse_ones_keep_the_rest() -> None:
    swarm = SwarmSize(4, 8)
    dense, fine = a_problem(), a_problem()
    of_dense = MergedMuon(dense, ARMS["muon-tiles"], SCHEDULE, swarm)
    of_fine = MergedMuon(fine, ARMS["muon-tiles"].__class__("", "", "muon", 0.0, True, 1e-3), SCHEDULE, swarm)
    for step in range(2):
        of_dense.train(step, 8 * step)
        of_fine.train(step, 8 * step)
    for name, tensor in dense.parameters.items():
        assert float((fine.parameters[name] - tensor).norm() / tensor.norm()) < 1e-2, name
    coarse = MergedMuon(a_problem(), ARMS["muon-tiles-1.5"], SCHEDULE, swarm)
    drawn = torch.randn(4, 2, 64, 64, generator=torch.Generator().manual_seed(1))
    coarse._unsent = {(64, 64): torch.zeros_like(drawn)}
    sent, levels = coarse._quantized((64, 64), drawn)
    assert torch.allclose(sent + coarse._unsent[64, 64], drawn, atol=1e-5)
    assert entropy(levels) == pytest.approx(1.58, abs=0.02)  # of a normal distribution in steps of 1.5 σ


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


def test_a_sweep_goes_on_beyond_its_edge() -> None:
    assert sweep_rates({}, 0.02, 2.0) == ([0.01, 0.02, 0.04], None)
    assert sweep_rates({0.01: 2, 0.02: 1, 0.04: math.nan}, 0.02, 2.0) == ([], 0.02)
    assert sweep_rates({0.01: 3, 0.02: 2, 0.04: 1}, 0.02, 2.0) == ([0.08], None)


def test_the_page_compares_with_the_better_dense_arm(tmp_path: Path) -> None:
    def line(arm: str, loss: float, tokens: int, seed: int = 1) -> Line:
        run = CardRun("byte-10m", arm, 1, 0.01, tokens, seed)
        return Line(run, 10_000_000, 1 << 16, loss, [(tokens, loss)], 32.0, 6e-5, 1e6, 1.0, "0" * 64, "this", "2.11")

    lines = [line("adamw", 1.25, 200_000_000), line("muon", 1.0, 200_000_000), line("muon", 1.5, 20_000_000)]
    lines += [line("muon-tiles", loss, 200_000_000, seed) for seed, loss in ((1, 1.1), (2, 1.14))]
    write_page(lines, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| muon-tiles | all | 200,000,000 | 20 | 0.01 | 2 | 1.1200 | +12.00% |" in page
    assert "| muon | all | 0.01 | 0.01: 1.5000 |" in page


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
