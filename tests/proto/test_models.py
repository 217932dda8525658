"""The built-in models: presets have the named sizes, attention is causal, and the first loss is that of a guess."""

from __future__ import annotations

import math

import pytest
import torch

from support.small import small_contract
from thinwire_proto.exact.schedule import decay, learning_rate
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.models import PRESETS, build_decoder, initial_state, manifest
from thinwire_proto.task import task_of


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        *[("byte-1m", 0.9), ("byte-10m", 10.7), ("byte-30m", 29), ("byte-125m", 127), ("byte-350m", 355)],
        *[("byte-1b", 1013), ("llama-1m", 1.05), ("llama-10m", 10.3), ("llama-30m", 29), ("llama-124m", 123.6)],
        *[("llama-350m", 353.6), ("llama-1b", 1005)],
    ],
)
def test_presets_have_the_named_sizes(name: str, millions: float) -> None:
    layout = TileLayout(task_of(PRESETS[name]).manifest())
    assert layout.parameters == pytest.approx(millions * 1e6, rel=0.02)
    assert layout.components == layout.parameters  # no tile is padded


@pytest.mark.parametrize("tied", [True, False])
def test_first_loss_is_that_of_a_guess_and_tied_tensors_are_listed_once(tied: bool) -> None:
    spec = small_contract(model={"width": 64, "heads": 2, "layers": 2, "hidden": 64, "context": 32, "tied": tied}).model
    model = build_decoder(spec)
    model.initialise(torch.Generator().manual_seed(1))
    tokens = torch.randint(0, 256, (8, 33), generator=torch.Generator().manual_seed(2))
    assert model.loss(tokens).item() == pytest.approx(math.log(256), abs=0.3)
    names = [parameter.name for parameter in manifest(model)]
    assert ("head.weight" in names) == (not tied)
    assert list(initial_state(spec, 1)) == names


def test_the_schedule_warms_up_and_ends_at_the_floor() -> None:
    schedule = small_contract(
        schedule={"steps": 100, "warmup_steps": 10, "learning_rate": 1e-2, "floor": 0.1, "weight_decay": 0.5}
    ).schedule
    rates = [learning_rate(schedule, step) for step in range(100)]
    assert rates[0] == pytest.approx(1e-2 / 11)
    assert max(rates) == rates[10] == pytest.approx(1e-2)
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(1e-3, rel=0.01)
    assert learning_rate(schedule, 100) == pytest.approx(1e-3)
    assert decay(schedule, 10) == pytest.approx(1 - 1e-2 * 0.5)
    assert decay(schedule, 0) == pytest.approx(1 - 1e-2 / 11 * 0.5)  # by the rate of the step, not by the peak
    assert all(float(torch.tensor(rate, dtype=torch.float32)) == rate for rate in rates)
