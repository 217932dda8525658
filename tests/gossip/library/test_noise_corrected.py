"""The corrected second moment is that of the mean over all nodes, and the optimizer works in a plain script."""

from __future__ import annotations

import copy

import pytest
import torch

from thinwire import NoiseCorrectedAdamW
from thinwire_proto.errors import ConfigError, LocalError


def halves_of(parameter: torch.Tensor, optimizer: NoiseCorrectedAdamW, one: torch.Tensor, other: torch.Tensor) -> None:
    torch.autograd.backward(parameter @ one / 2)
    optimizer.keep_half()
    torch.autograd.backward(parameter @ other / 2)


def test_it_estimates_the_second_moment_of_a_mean_over_nodes() -> None:
    """Gradients of mean μ and of noise σ a half: E[(mean over n nodes)²] = μ² + σ²/2n."""
    torch.manual_seed(1)
    mu, sigma, nodes = torch.linspace(-1, 1, 40), 2.0, 8
    parameter = torch.nn.Parameter(torch.zeros(40))
    optimizer = NoiseCorrectedAdamW([parameter], lr=0.0, betas=(0.9, 0.9995), nodes=nodes)
    for _ in range(3000):
        parameter.grad = None
        halves_of(parameter, optimizer, mu + sigma * torch.randn(40), mu + sigma * torch.randn(40))
        optimizer.step()
    state = optimizer.state[parameter]
    start = 1 - 0.9995**3000
    for name, noise in (("corrected_sq", sigma**2 / (2 * nodes)), ("exp_avg_sq", sigma**2 / 2)):
        error = state[name] / start - (mu**2 + noise)
        assert abs(float(error.mean())) < 0.1  # 0.01 is its standard error; the two noises differ by 1.75
        assert float(error.abs().max()) < 0.9


def test_equal_halves_make_it_adamw() -> None:
    torch.manual_seed(2)
    ours = torch.nn.Parameter(torch.randn(20))
    theirs = torch.nn.Parameter(ours.detach().clone())
    settings = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}
    optimizer = NoiseCorrectedAdamW([ours], nodes=4, **settings)  # type: ignore[arg-type]
    adamw = torch.optim.AdamW([theirs], **settings)  # type: ignore[arg-type]
    for _ in range(30):
        gradient = torch.randn(20)
        optimizer.zero_grad()
        halves_of(ours, optimizer, gradient, gradient)
        optimizer.step()
        theirs.grad = gradient
        adamw.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_v_never_falls_below_its_floor() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = NoiseCorrectedAdamW([parameter], lr=0.1, weight_decay=0.0, nodes=4)
    halves_of(parameter, optimizer, torch.tensor([3.0]), torch.tensor([-1.0]))  # g = 1, estimate −3 + 16/16 = −2
    optimizer.step()
    assert parameter.item() == pytest.approx(-0.1 * 2)  # v = 1/4


def test_gradients_may_be_clipped_if_both_halves_were_kept() -> None:
    def step(clip: bool, scale: float) -> torch.Tensor:
        torch.manual_seed(3)
        parameter = torch.nn.Parameter(torch.zeros(10))
        optimizer = NoiseCorrectedAdamW([parameter], lr=0.1, nodes=4)
        halves_of(parameter, optimizer, scale * torch.randn(10), scale * torch.randn(10))
        if clip:
            optimizer.keep_half()
            norm = torch.nn.utils.clip_grad_norm_([parameter], 0.5)
            assert norm > 0.5
        optimizer.step()
        ratio: torch.Tensor = optimizer.state[parameter]["corrected_sq"] / optimizer.state[parameter]["exp_avg_sq"]
        return ratio

    torch.testing.assert_close(step(True, 1.0), step(False, 1.0))


def test_its_state_resumes() -> None:
    def run(optimizer: NoiseCorrectedAdamW, parameter: torch.Tensor, seeds: range) -> None:
        for seed in seeds:
            torch.manual_seed(seed)
            optimizer.zero_grad()
            halves_of(parameter, optimizer, torch.randn(5), torch.randn(5))
            optimizer.step()

    whole = torch.nn.Parameter(torch.ones(5))
    optimizer = NoiseCorrectedAdamW([whole], nodes=2)
    run(optimizer, whole, range(3))
    resumed = torch.nn.Parameter(whole.detach().clone())
    other = NoiseCorrectedAdamW([resumed], nodes=2)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(optimizer, whole, range(3, 6))
    run(other, resumed, range(3, 6))
    assert torch.equal(whole, resumed)


def test_misuse_is_refused() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = NoiseCorrectedAdamW([parameter], nodes=2)
    torch.autograd.backward(parameter.sum())
    with pytest.raises(LocalError, match="keep_half"):
        optimizer.step()
    optimizer.keep_half()
    optimizer.keep_half()
    with pytest.raises(LocalError, match="two halves"):
        optimizer.keep_half()
    with pytest.raises(ConfigError, match="nodes"):
        NoiseCorrectedAdamW([parameter], nodes=0)
    with pytest.raises(ConfigError, match="lr"):
        NoiseCorrectedAdamW([{"params": [parameter], "lr": -1.0}], nodes=1)
    with pytest.raises(ConfigError, match="NoiseCorrectedAdamW takes no complex parameters"):
        NoiseCorrectedAdamW([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))], nodes=1)
