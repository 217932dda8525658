"""Each method of the study takes the steps that it is known for, and counts the bytes of its messages."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from bench.convergence.all_reduce import AdamW, GroupedMuon
from bench.convergence.arms import ARMS
from bench.convergence.local_steps import DiLoCo
from bench.convergence.method import SwarmSize
from bench.convergence.problem import Problem
from bench.convergence.run import METHODS, Run, Size, train
from bench.convergence.sparseloco import CHUNK, TOP_K, compressed
from bench.convergence.text import Text
from thinwire import Muon
from thinwire.steps.muon import grouped
from thinwire_proto.contract import DecoderSpec, Parameter, ScheduleSpec
from thinwire_proto.contract.rules.muon import MuonSpec
from thinwire_proto.exact.schedule import learning_rate

SCHEDULE = ScheduleSpec(learning_rate=1e-2, warmup_steps=1, steps=64)
MODEL = DecoderSpec(width=64, layers=1, heads=2, hidden=80, context=16)


def a_problem() -> Problem:
    drawn = np.random.default_rng(1).integers(0, 64, 20_000).astype(np.uint8)
    return Problem(MODEL, Text(drawn[:16_000], drawn[16_000:], "c" * 64), 1, torch.device("cpu"))


def test_dense_muon_takes_the_steps_of_the_optimizer_for_scripts() -> None:
    ours, theirs = a_problem(), a_problem()
    of_muon = [MuonSpec().takes(Parameter(name=n, shape=tuple(t.shape))) for n, t in theirs.parameters.items()]
    assert any(of_muon)
    groups = grouped(zip(theirs.parameters.values(), of_muon, strict=True))
    grouped_muon, muon = GroupedMuon(ours.parameters), Muon(groups, lr=0.01, momentum=MuonSpec().momentum)
    for step in range(3):
        grouped_muon.step(ours.gradients(8 * step, 8)[1], 0.01)
        for parameter, gradient in zip(
            theirs.parameters.values(), theirs.gradients(8 * step, 8)[1].values(), strict=True
        ):
            parameter.grad = gradient
        muon.step()
    for name, tensor in theirs.parameters.items():
        torch.testing.assert_close(ours.parameters[name], tensor, rtol=1e-4, atol=1e-5)


def test_diloco_of_one_node_without_an_outer_momentum_is_its_local_steps() -> None:
    arm = replace(ARMS["diloco"], local_steps=4, outer=1.0, outer_momentum=1e-9)
    ours, alone = a_problem(), a_problem()
    method, adamw = DiLoCo(ours, arm, SCHEDULE, SwarmSize(1, 4)), AdamW(alone.parameters, arm.beta)
    for number in range(2):
        method.round(4 * number, 16 * number)
    for step in range(8):
        adamw.step(alone.gradients(4 * step, 4)[1], learning_rate(SCHEDULE, step))
    for name, tensor in alone.parameters.items():
        torch.testing.assert_close(ours.parameters[name], tensor, rtol=1e-4, atol=1e-6)


def test_sparseloco_sends_the_largest_entries_of_each_chunk_in_four_values() -> None:
    values = torch.from_numpy(np.random.default_rng(3).standard_normal((3, CHUNK))).float()
    values[1] *= 100  # the other chunks send as many entries all the same
    sent, entries = compressed(values)
    assert entries == 3 * TOP_K
    assert [int(row.count_nonzero()) for row in sent] == [TOP_K] * 3
    assert len(set(sent[sent != 0].tolist())) <= 4
    for row, of_row in zip(values, sent, strict=True):
        assert of_row.abs().topk(TOP_K).indices.sort().values.equal(row.abs().topk(TOP_K).indices.sort().values)


def test_sparseloco_sends_as_large_a_share_of_a_short_tensor() -> None:
    sent, entries = compressed(torch.arange(1.0, 129.0))
    assert entries == 2
    assert sent.nonzero().view(-1).tolist() == [126, 127]


@pytest.mark.parametrize("arm", ["diloco", "muloco", "sparseloco"])
def test_arms_with_local_steps_learn_and_count_their_bytes(arm: str) -> None:
    shorter = replace(ARMS[arm], local_steps=2)
    problem = a_problem()
    before = problem.held_out_loss(64)
    method = METHODS[shorter.kind](problem, shorter, SCHEDULE, SwarmSize(4, 8))
    traffic = [method.round(2 * number, 16 * number)[1] for number in range(8)]
    assert problem.held_out_loss(64) < before
    parameters = sum(tensor.numel() for tensor in problem.parameters.values())
    if arm == "sparseloco":
        assert traffic[0].down == 3 * traffic[0].up
        assert 8 * traffic[0].up / parameters < 32 * 2 * TOP_K / CHUNK
    else:
        assert traffic[0].up == traffic[0].down == 6 * parameters


@pytest.mark.parametrize(
    ("arm", "bits"), [("gossip-dense-muon", 32), ("gossip-sign-muon", 1), ("gossip-sign-muon-pull", 1)]
)
def test_arms_without_a_centre_count_the_bytes_of_their_messages(arm: str, bits: int) -> None:
    size = Size("byte-1m", 8, 8)
    result = train(Run(arm, 1e-3, 1, 4, 2 * 8 * 256, size))
    assert result.single_node_loss is not None
    assert math.isfinite(result.single_node_loss)
    assert result.up == result.down
    assert bits < 8 * result.up / (2 * result.parameters) < 1.05 * bits  # in each of two rounds
