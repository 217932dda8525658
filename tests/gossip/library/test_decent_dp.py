"""Gossip beside decent-dp 0.2.3 itself, and the wrapper with its interface, without its faults."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from support.gossip_parity import OPTIMIZERS, TOPOLOGIES, network
from support.gossip_problem import equal, loss_of, values
from support.gossip_ranks import run_scenes
from thinwire import AccumAdam, AccumAdamW, DecentralizedDataParallel
from thinwire.steps.optimizer_functions import optim_fn_accum_adam, optim_fn_accum_adamw, optim_fn_adam, optim_fn_adamw
from thinwire_proto.errors import ConfigError

Found = list[dict[str, Any]]


class Checkpointed(nn.Module):
    """Layers whose activations are computed again in the backward pass."""

    def __init__(self, layers: list[nn.Module], reentrant: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.reentrant = reentrant

    def forward(self, inputs: Tensor) -> Any:
        return checkpoint(self.layers, inputs, use_reentrant=self.reentrant)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_scenes(tmp_path_factory.mktemp("decent"), "support.gossip_parity")


@pytest.mark.skipif(importlib.util.find_spec("decent_dp") is None, reason="decent-dp is not installed")
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_200_steps_are_those_of_decent_dp(ranks: Found, topology: str, kind: str) -> None:
    for found in ranks:
        apart, moved = found["parity"][topology, kind]
        assert apart < 1e-5
        assert moved > 0.05


def test_a_script_of_decent_dp_runs(ranks: Found) -> None:
    """Also with `zero_grad` before the backward pass, which loses decent-dp's first gradient."""
    first, last = (sum(found["script"]["losses"][at] for found in ranks) for at in (0, 1))
    assert last < first / 2
    for found in ranks:
        end = found["script"]
        assert end["steps"] == 60
        assert not end["training"]  # `eval` is for the wrapper too
        assert end["restored"]
        assert end["apart"] > 0
        assert end["kept"] < 1e-6


def test_one_rank_a_host_and_averaging_before_the_first_step_work(ranks: Found) -> None:
    assert [found["in_the_first_iteration"] for found in ranks] == [pytest.approx(0.0, abs=1e-6)] * len(ranks)


def test_clipping_and_the_scaler_see_all_gradients_at_once(ranks: Found) -> None:
    for rank, found in enumerate(ranks):
        moved, scale, steps = found["scaler_and_clipping"]
        assert moved == pytest.approx(1.0, rel=1e-5)
        assert scale == (2.0**9 if rank == 2 else 2.0**10)  # halved once
        assert steps == (11 if rank == 2 else 12)


def test_accumulation_steps_by_the_sum_of_the_gradients(ranks: Found) -> None:
    for found in ranks:
        steps, rate, apart = found["accumulation"]
        assert steps == 3
        assert rate == pytest.approx(0.1 / 8)
        assert apart < 1e-6


@pytest.mark.parametrize("topology", ["complete", "ring", "one-peer-exp", "alternating-exp-ring"])
def test_one_rank_alone_trains(topology: str) -> None:
    model = network(0)
    wrapped = DecentralizedDataParallel(model, optim_fn_adamw, topology=topology)
    before = values(model)
    loss_of(wrapped, 0, 0).backward()  # type: ignore[no-untyped-call]
    assert not any(torch.equal(a, b) for a, b in zip(values(model), before, strict=True))
    assert wrapped.get_lr() == 1e-3
    assert next(name for name, _ in wrapped.named_parameters()) == "_model.0.weight"
    assert len(list(wrapped.parameters())) == 4
    wrapped.gossip.finish()


def test_averages_are_reverted_once() -> None:
    wrapped = DecentralizedDataParallel(network(0), optim_fn_adamw)
    with pytest.raises(ConfigError, match="nothing to revert"):
        wrapped.revert_global_avg()
    wrapped.global_avg()
    with pytest.raises(ConfigError, match="averaged already"):
        wrapped.global_avg()
    wrapped.revert_global_avg()
    wrapped.gossip.finish()


def test_a_pass_that_only_accumulates_does_not_step_after_one_that_failed() -> None:
    wrapped = DecentralizedDataParallel(network(0), optim_fn_adamw)

    def fail(_: Tensor) -> None:
        raise RuntimeError("out of memory")

    first = next(wrapped.parameters())
    failing = first.register_hook(fail)  # type: ignore[no-untyped-call]  # after the gradients of later layers
    with pytest.raises(RuntimeError, match="out of memory"):
        loss_of(wrapped, 0, 0).backward()  # type: ignore[no-untyped-call]
    failing.remove()
    wrapped.set_accumulate_grad(True)
    loss_of(wrapped, 0, 1).backward()  # type: ignore[no-untyped-call]
    assert wrapped.gossip.steps == 0
    assert first.grad is not None
    wrapped.gossip.finish()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_backward_pass_with_a_checkpoint_of_activations_steps_once(reentrant: bool) -> None:
    """Its last layers are the checkpoint, whose gradients come in a backward pass inside the script's."""
    found = []
    for checkpointed in (True, False):
        model = network(0)
        if checkpointed:
            first, *rest = model.children()
            model = nn.Sequential(first, Checkpointed(rest, reentrant))
        wrapped = DecentralizedDataParallel(model, optim_fn_adamw)
        for step in range(2):
            loss_of(wrapped, 0, step).backward()  # type: ignore[no-untyped-call]
        assert wrapped.gossip.steps == 2
        found.append(values(model))
        wrapped.gossip.finish()
    assert equal(*found)


@pytest.mark.parametrize(
    ("make", "kind", "decay"),
    [
        (optim_fn_adam, torch.optim.Adam, 1 / 32768),
        (optim_fn_adamw, torch.optim.AdamW, 0.1),
        (optim_fn_accum_adam, AccumAdam, 1 / 32768),
        (optim_fn_accum_adamw, AccumAdamW, 0.1),
    ],
)
def test_weights_are_decayed_and_biases_are_not(make: Any, kind: Any, decay: float) -> None:
    names = ["subnet.weight", "layer.bias", "bn1.weight", "rnn.bias_hh_l0", "last_bn.weight"]
    named = [(name, nn.Parameter(torch.ones(2))) for name in names]
    for inverted in (False, True):
        optimizer = make(named, lr=0.5, beta2=0.9, inverted=inverted)
        assert type(optimizer) is kind
        found = [group["weight_decay"] for group in optimizer.param_groups]
        assert found == ([0.0, decay] if inverted else [decay, 0.0])
        assert [group["params"][0] is named[at][1] for at, group in enumerate(optimizer.param_groups)] == [True, True]
        assert [len(group["params"]) for group in optimizer.param_groups] == [1, 4]
        assert optimizer.param_groups[0]["betas"] == (0.9, 0.9)
