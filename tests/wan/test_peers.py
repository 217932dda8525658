"""The comparison with other systems: what logs mean, the evaluator, and the page. Needs none of the systems."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.convergence.problem import Problem
from bench.convergence.text import stdlib
from bench.peers.environments import last_error
from bench.peers.evaluator import Evaluator
from bench.peers.figures import (
    Batch,
    Outcome,
    at_x,
    back_after_s,
    came_back_equal,
    longest_gap_s,
    read_batches,
    tokens_until,
)
from bench.peers.report import page
from bench.peers.runs import batches_of_swarm, constant_rate
from bench.peers.scripts.trainee import Trainee
from bench.peers.systems import count_lines
from bench.studies import append, read
from bench.wide_area.watch import Sample
from bench.wide_area.workload import PRESET, SAMPLES, SEED
from deploy.local_swarm.processes import SwarmError
from thinwire_proto.models import BYTE_PRESETS

KILLED_S, RESTARTED_S, END_S = 100.0, 110.0, 160.0


def batch(at_s: float, node: int, version: int | None = None, digest: str = "") -> Batch:
    return Batch(at_s, node, 2304, version, digest)


def outcome(system: str, **changes: object) -> Outcome:
    first = Outcome(
        system,
        "2026-11-28 14:00",
        "2 cores",
        "10 Mbit/s, 100 ms",
        False,
        versions={"torch": "2.13.0"},
        nodes=4,
        parameters=500_000,
        seconds=100.0,
        tokens=400_000,
        sent_bytes=1e6,
        received_bytes=2e6,
        curve=[(0.0, 0, 5.0), (50.0, 200_000, 4.0), (100.0, 400_000, 3.0)],
        gap_before_s=2.0,
        still_s=3.0,
        after_s=60.0,
        back_s=12.0,
        equal=True,
        last_losses=[3.0],
        load=1.5,
    )
    return replace(first, **changes)  # type: ignore[arg-type]


def test_a_stand_still_is_the_longest_time_without_a_batch_of_any_survivor() -> None:
    batches = [batch(at_s, node) for node, times in enumerate(([90, 101, 125, 150], [95, 104, 131])) for at_s in times]
    assert longest_gap_s(batches, KILLED_S, END_S) == 21  # from 104 to 125
    assert longest_gap_s(batches, 80, KILLED_S) == 10


def test_a_job_that_ended_stands_still_until_the_end() -> None:
    assert longest_gap_s([batch(99, 0), batch(103, 1)], KILLED_S, END_S) == END_S - 103
    assert longest_gap_s([batch(99, 0)], KILLED_S, END_S) == END_S - KILLED_S


def test_a_node_is_back_with_its_first_batch_after_the_new_start() -> None:
    batches = [batch(99, 3), batch(112, 0), batch(131, 3), batch(140, 3)]
    assert back_after_s(batches, 3, RESTARTED_S) == 21
    assert back_after_s(batches[:2], 3, RESTARTED_S) is None


@pytest.mark.parametrize(
    ("digest", "version", "equal"), [("b", 8, True), ("x", 8, False), ("a", 7, None)], ids=["equal", "other", "behind"]
)
def test_a_node_that_came_back_is_compared_in_the_last_common_version(
    digest: str, version: int, equal: bool | None
) -> None:
    before = [batch(90, 0, 5, "p"), batch(90, 3, 5, "q")]
    batches = [*before, batch(120, 0, 8, "b"), batch(121, 1, 8, "b"), batch(125, 3, version, digest)]
    assert came_back_equal(batches, 3, RESTARTED_S) is equal


def test_half_a_line_of_a_killed_node_is_skipped() -> None:
    line = json.dumps(asdict(batch(1.5, 2, 7, "d")))
    assert read_batches([line, line[:20]]) == [batch(1.5, 2, 7, "d")]


def test_a_swarm_s_updates_become_batches_of_the_nodes_that_contributed() -> None:
    first = Sample(1.0, 4, 1000, 0, 0, 0.0, 2, 0, 0, {"node-1": 4, "node-2": 4})
    second = replace(first, at_s=3.0, step=5, tokens=7000, counted_by={"node-1": 5, "node-2": 5})
    third = replace(second, at_s=5.0, step=6, tokens=9000, counted_by={"node-1": 6, "node-2": 5})
    lines = [json.dumps(asdict(sample)) for sample in (first, second, third)]
    found = batches_of_swarm([*lines, lines[-1][:10]])
    assert [(one.at_s, one.node, one.tokens, one.version) for one in found] == [
        (3.0, 0, 3000, 5),
        (3.0, 1, 3000, 5),
        (5.0, 0, 2000, 6),
    ]
    assert tokens_until(found, 4.0) == 6000


def test_losses_are_read_between_the_points_of_a_curve() -> None:
    curve = outcome("DDP").curve
    assert at_x(curve, 75.0, 0) == pytest.approx(3.5)
    assert at_x(curve, 100_000, 1) == pytest.approx(4.5)
    assert at_x(curve, 101.0, 0) is None


def test_what_a_script_hands_over_is_evaluated_as_the_model_itself(tmp_path: Path) -> None:
    options = ["--rank", "1", "--addresses", "a", "b", "--coordinator", "c", "--folder", str(tmp_path)]
    node, threads = Trainee(options), torch.get_num_threads()
    try:
        node.done(version=1)
    finally:
        torch.set_num_threads(threads)
    (reported,) = read_batches((tmp_path / "1.jsonl").read_text().splitlines())
    assert (reported.node, reported.version) == (1, 1)
    assert reported.tokens == SAMPLES * BYTE_PRESETS[PRESET].context
    problem = Problem(BYTE_PRESETS[PRESET], stdlib(), SEED, torch.device("cpu"))
    (file,) = tmp_path.glob("1-*.safetensors")
    evaluator = Evaluator(samples=4)
    assert evaluator.loss(file) == pytest.approx(problem.held_out_loss(4), abs=1e-5)
    tensors = load_file(file)
    tensors["norm.weight"] = tensors["norm.weight"][:-1]
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="does not hold the parameters of byte-1m"):
        evaluator.loss(tmp_path / "other.safetensors")


def test_the_page_names_a_system_that_failed_and_says_where_others_are_better(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    faster = outcome("torchft DDP", tokens=800_000, ended="it | lost", still_s=59.0, equal=None, back_s=None)
    for one in (outcome("thinwire"), faster, outcome("exogym", error="ERROR: No matching distribution found")):
        append(results, one)
    text = page(read(results, Outcome))
    assert "The load average was 1.5 to 1.5, that of the measured programs included." in text
    assert "**The machine did other work as well**" in page([outcome("thinwire", load=6.0)])
    assert "| thinwire | 4,000 | 3.000 | 3.000 | 10.0 B | 20.0 B | 20.0 B | 40.0 B |" in text
    assert "| torchft DDP | 2.0 | 59.0, until the end | ended: `it \\| lost` | not while watched | – | 3.00 |" in text
    assert "| tokens a second | torchft DDP |" in text
    assert "| time that all stood still | none |" in text
    assert "| exogym | exogym==0.0.0a0 | `ERROR: No matching distribution found` |" in text


def test_losses_are_compared_at_the_tokens_that_ddp_reached() -> None:
    slow = outcome("detonation", curve=[(0.0, 0, 5.0), (100.0, 50_000, 4.8)])
    text = page([outcome("thinwire"), outcome("DDP", curve=[(0.0, 0, 5.0), (100.0, 200_000, 3.5)]), slow])
    assert "| loss at 200,000 tokens |" in text
    assert "| thinwire | 4,000 | 3.000 | 4.000 |" in text
    assert "| detonation | 4,000 | 4.800 | – |" in text


def test_a_page_does_not_mix_quick_windows_with_long_ones() -> None:
    with pytest.raises(ValueError, match="use another --into"):
        page([outcome("thinwire"), outcome("DDP", quick=True)])


def test_lines_of_a_script_are_those_with_code() -> None:
    assert count_lines('"""What\nit is."""\n\n# why\nx = 1\ny = "text"  # why\n') == 2


def test_the_last_line_that_names_an_error_is_shown() -> None:
    assert last_error("start\nRuntimeError: lost\nbye\n") == "RuntimeError: lost"
    assert last_error("\n") == "it printed nothing"


def test_a_run_file_without_a_schedule_is_refused() -> None:
    assert "warmup_steps = 4" in constant_rate("warmup_steps = 72   # steps\nfloor = 0.1\n")
    with pytest.raises(SwarmError, match="has no warmup_steps"):
        constant_rate("[model]\n")
