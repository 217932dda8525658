"""AccumAdam's arithmetic, beside a second formulation of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from thinwire import AccumAdam, AccumAdamW
from thinwire_proto.errors import ConfigError

BETA1, BETA2, EPS, RATE, DECAY, WINDOW = 0.9, 0.99, 1e-8, 0.01, 0.1, 3


def by_hand(values: list[float], gradients: list[list[float]], decoupled: bool) -> list[float]:
    """The steps on single numbers, in Python's floats. Here β multiplies at the beginning of a window, but in the first
    one, where there is nothing to multiply."""
    first, second, mean = [0.0] * len(values), [0.0] * len(values), [0.0] * len(values)
    for step, now in enumerate(gradients, 1):
        for at, gradient in enumerate(now):
            g = gradient
            if decoupled:
                values[at] *= 1 - RATE * DECAY
            else:
                g += DECAY * values[at]
            mean[at] += g / WINDOW
            m = BETA1 * first[at] + (1 - BETA1) * g
            v = BETA2 * second[at] + (1 - BETA2) * g * g
            windows = math.ceil(step / WINDOW)
            unbiased = m / (1 - BETA1**windows), v / (1 - BETA2**windows)
            values[at] -= RATE * unbiased[0] / (math.sqrt(unbiased[1]) + EPS)
            if step % WINDOW == 0:
                first[at] = BETA1 * first[at] + (1 - BETA1) * mean[at]
                second[at] = BETA2 * second[at] + (1 - BETA2) * mean[at] ** 2
                mean[at] = 0.0
    return values


@pytest.mark.parametrize("kind", [AccumAdam, AccumAdamW])
def test_steps_are_those_of_the_formula(kind: type[AccumAdam]) -> None:
    generator = torch.Generator().manual_seed(1)
    parameter = nn.Parameter(torch.randn(4, generator=generator, dtype=torch.float64))
    gradients = torch.randn(10, 4, generator=generator, dtype=torch.float64)
    expected = by_hand(parameter.tolist(), gradients.tolist(), kind is AccumAdamW)
    optimizer = kind([parameter], lr=RATE, betas=(BETA1, BETA2), eps=EPS, weight_decay=DECAY, accum_iter=WINDOW)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
        assert torch.equal(parameter.grad, gradient)  # weight decay does not change it
    assert parameter.tolist() == pytest.approx(expected, rel=1e-12)


def test_a_loaded_state_goes_on_as_without_a_break() -> None:
    def run(break_at: int | None) -> torch.Tensor:
        parameter = nn.Parameter(torch.ones(3))
        optimizer = AccumAdamW([parameter], accum_iter=4)
        for step in range(9):
            if step == break_at:
                state = optimizer.state_dict()
                optimizer = AccumAdamW([parameter], accum_iter=4)
                optimizer.load_state_dict(state)
            parameter.grad = torch.tensor([1.0, -1.0, 0.1]) * (step - 3)
            optimizer.step(lambda: 0.0)
        return parameter.detach()

    assert torch.equal(run(None), run(6))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accum_iter": 0}, "accum_iter must be"),
        ({"betas": (1.0, 0.9)}, "betas must be"),
        ({"lr": -1.0}, "must be 0 or more"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AccumAdam([nn.Parameter(torch.ones(1))], **settings)
    with pytest.raises(ConfigError, match=message):
        AccumAdam([{"params": [nn.Parameter(torch.ones(1))], **settings}])


def test_the_state_of_another_optimizer_is_refused() -> None:
    parameter = nn.Parameter(torch.ones(3))
    with pytest.raises(
        ConfigError, match="of another optimizer: its groups have no accum_iter, as those of AccumAdamW"
    ):
        AccumAdamW([parameter]).load_state_dict(torch.optim.AdamW([parameter]).state_dict())
