"""The DeMo optimizer: with votes it equals a swarm's node, with floats the published arithmetic."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from support.published_step import PublishedStep
from support.ranks import (
    DECAY,
    RANKS,
    RATE,
    STEPS,
    UPDATE_TOPK,
    VOTE,
    Shapes,
    give,
    gradients_of,
    parameters_of,
    run_ranks,
    steps_of,
)
from support.small import SHAPES, shapes_contract
from thinwire import DeMo
from thinwire.compression.momentum import Momentum
from thinwire.compression.residual import dropped_part
from thinwire.demo.checks import check_equal_rates
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import to_float32
from thinwire_proto.exact.topk import topk_selection
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import merge


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return run_ranks(tmp_path_factory.mktemp("ranks"))


def node_path(nodes: int, demo: dict[str, Any]) -> dict[str, Tensor]:
    """The parameters that a swarm reaches: momenta of nodes, merged votes, and a replica that applies the updates."""
    contract = shapes_contract(demo=demo | {"k": 32})
    spec = contract.demo
    first = {f"t{number}": tensor.detach().clone() for number, tensor in enumerate(parameters_of(SHAPES))}
    replica = Replica(contract, first, 0, b"")
    momenta = [Momentum(replica.layout, spec, "cpu") for _ in range(nodes)]
    rate = to_float32(RATE)
    for step in range(STEPS):
        sent = []
        for node, momentum in enumerate(momenta):
            gradients = gradients_of(SHAPES, step, node)
            momentum.accumulate({f"t{number}": tensor for number, tensor in enumerate(gradients)}, rate)
            sent.append(momentum.extract(spec.k))
        selection = topk_selection(spec, replica.layout, step)
        merged = merge(((one.votes(), 1) for one in sent), replica.layout.components, selection)
        for momentum, one in zip(momenta, sent, strict=True):
            if part := dropped_part(one, merged, replica.layout, spec.update_topk):
                momentum.put_back(part)
        replica.apply(Update(step, rate, to_float32(1 - rate * DECAY), merged), b"")
    return replica.tensors


# with votes


@pytest.mark.parametrize("precondition", ["none", "adam"])
@pytest.mark.parametrize("magnitude", ["sign", "clipped"])
def test_one_rank_steps_as_a_swarm_of_one_node_bit_for_bit(precondition: Any, magnitude: Any) -> None:
    parameters = parameters_of(SHAPES)
    ours: dict[str, Any] = {"precondition": precondition, "magnitude": magnitude}
    steps_of(DeMo(parameters, **ours, **VOTE), SHAPES, 0, STEPS)
    demo = ours | {"beta": 0.9}
    for parameter, expected in zip(parameters, node_path(1, demo).values(), strict=True):
        assert torch.equal(parameter, expected)


def test_two_ranks_step_as_a_swarm_of_two_nodes_bit_for_bit(ranks: dict[str, list[Any]]) -> None:
    swarm = node_path(RANKS, {"precondition": "adam", "magnitude": "clipped", "beta": 0.9})
    for parameters, _, _ in ranks["votes"]:
        for found, expected in zip(parameters, swarm.values(), strict=True):
            assert np.array_equal(found, expected.numpy())


def test_two_ranks_with_update_topk_step_as_two_nodes_bit_for_bit(ranks: dict[str, list[Any]]) -> None:
    swarm = node_path(RANKS, {"precondition": "none", "magnitude": "clipped", "beta": 0.9, "update_topk": UPDATE_TOPK})
    everything = node_path(RANKS, {"precondition": "none", "magnitude": "clipped", "beta": 0.9})
    for parameters in ranks["leaving_out"]:
        for found, expected in zip(parameters, swarm.values(), strict=True):
            assert np.array_equal(found, expected.numpy())
    assert not torch.equal(swarm["t0"], everything["t0"])


def test_ranks_stay_equal_with_missing_and_infinite_gradients(ranks: dict[str, list[Any]]) -> None:
    """Some gradients are missing, or all, or one is infinite; the rates differ by rounding."""
    (first, *dropped_first), (second, *dropped_second) = ranks["unequal"]
    assert first == second
    assert len(set(first)) == STEPS  # the other rank's votes apply when one rank sends nothing
    assert (dropped_first[0], dropped_second[0]) == (1, 0)
    assert np.array_equal(dropped_first[1][0], parameters_of(SHAPES)[1].detach().numpy())  # frozen


def test_bytes_of_a_step_are_few_and_counted(ranks: dict[str, list[Any]]) -> None:
    """At most 10 bits a component, plus the overhead of the exchange."""
    components = sum(32 * -(-math.prod(s) // 64) if len(s) < 2 else 32 * tiles_of(s) for s in SHAPES)
    for _, sent, both_ways in ranks["votes"]:
        assert sent < components * 10 / 8 + 250
        assert both_ways


def tiles_of(shape: tuple[int, ...]) -> int:
    return -(-shape[0] // 64) * -(-math.prod(shape[1:]) // 64)


def test_gather_of_varying_sizes_is_complete_and_of_steady_sizes_cheap(ranks: dict[str, list[Any]]) -> None:
    for wrong, sent in ranks["sizes"]:
        assert wrong == 0
        assert 10_000 < sent < 10_500


def test_differences_between_ranks_are_named(ranks: dict[str, list[Any]]) -> None:
    first, second = ranks["at_odds"]
    assert first == second
    settings_differ, shapes_differ, rates_differ, parameters_differ, steps_differ = first
    assert "param group 0, compression_topk: 32 on rank 0, 31 on rank 1" in settings_differ
    assert "precondition_beta: 0.5 on rank 0, 0.25 on rank 1" in settings_differ
    assert "shape of parameter 0: [64, 64] on rank 0, [64, 65] on rank 1" in shapes_differ
    assert "the lr of param group 0 is 0.001 on rank 0 and 0.002 on rank 1" in rates_differ
    assert "do not start from the same parameters" in parameters_differ
    assert "steps so far: 0 on rank 0, 1 on rank 1" in steps_differ


def test_after_an_error_ranks_that_agree_again_go_on(ranks: dict[str, list[Any]]) -> None:
    (first, fingerprint), (second, other) = ranks["after_errors"]
    assert first == second
    assert fingerprint == other
    unequal, broadcast, loaded_alone, late, equal_again = first
    assert "do not start from the same parameters" in unequal
    assert [broadcast, loaded_alone, equal_again] == ["", "", ""]
    assert late == "the ranks' optimizers differ: param group 0, compression_topk: 32 on rank 0, 5 on rank 1"


def test_ranks_step_together_although_a_scaler_of_one_of_them_finds_an_overflow(ranks: dict[str, list[Any]]) -> None:
    """Scales are powers of two, so the steps are those without a scaler, bit for bit."""
    (first, first_plain), (second, second_plain) = ranks["scaled"]
    assert first == first_plain
    assert second == second_plain
    assert first[0] == second[0]
    assert [first[1], second[1]] == [0, 1]


def test_ranks_that_send_the_same_again_and_again_warn_once(ranks: dict[str, list[Any]]) -> None:
    for with_all_reduce, *without in ranks["averaged"]:
        assert len(with_all_reduce) == 1
        assert "all ranks have sent the same components in 3 steps" in with_all_reduce[0]
        assert without == [[], []]


def test_a_rank_does_not_go_on_alone_after_its_group_was_destroyed(ranks: dict[str, list[Any]]) -> None:
    for kinds in ranks["without_group"]:
        for error, kept in kinds:
            assert "has stepped with 2 ranks, and torch.distributed has 1 now" in error
            assert kept == pytest.approx(
                [1.0] * len(SHAPES), rel=1e-4
            )  # a step that fails loses nothing of the gradient


# with floats


def test_floats_follow_the_published_step(ranks: dict[str, list[Any]]) -> None:
    """Two ranks, six steps, with matrices, a vector, four dimensions and a scalar, with decay: parameters and
    momentum."""
    reference = PublishedStep()
    for step in range(STEPS):
        reference.step(step)
    for rank, (parameters, left) in enumerate(ranks["floats"]):
        for index, found in enumerate(parameters):
            clear = ~reference.unclear[index]
            assert clear.mean() > 0.99
            assert np.allclose(found[clear], reference.theta[index][clear], atol=1e-6)
            assert np.allclose(left[index].reshape(found.shape), reference.delta[rank][index], atol=1e-6)


# properties of training scripts


@given(
    shapes=st.lists(st.lists(st.integers(1, 70), max_size=4).filter(lambda s: math.prod(s) < 5000), max_size=4),
    missing=st.sets(st.integers(0, 3)),
    values=st.sampled_from(["vote", "float"]),
    precondition=st.sampled_from(["none", "adam"]),
)
@settings(max_examples=25, deadline=None)
def test_any_dimensions_step_by_the_rate_and_none_counts_as_zero(
    shapes: list[list[int]], missing: set[int], values: Any, precondition: Any
) -> None:
    wanted: Shapes = (*(tuple(shape) for shape in shapes), (3,))
    results = []
    for fill in (None, 0.0):
        parameters = parameters_of(wanted)
        before = [parameter.detach().clone() for parameter in parameters]
        optimizer = DeMo(parameters, values=values, precondition=precondition, compression_decay=0.9, lr=0.25)
        for _ in range(2):
            give(parameters, gradients_of(wanted, 0, 0))  # the same gradient twice, so that two steps cannot cancel
            for index in missing & set(range(len(parameters))):
                parameters[index].grad = None if fill is None else torch.zeros(wanted[index])
            optimizer.step()
        for index, (now, then) in enumerate(zip(parameters, before, strict=True)):
            moved = (now - then).abs()
            assert torch.all((moved - moved.mul(4).round().div(4)).abs() < 1e-6)  # −2, −1, 0, 1 or 2 steps
            assert bool(moved.any()) != (index in missing) or values == "vote"
        results.append(parameters)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("values", ["vote", "float"])
def test_memory_formats_tied_and_frozen_parameters_and_sparse_gradients(values: Any) -> None:
    """They step like contiguous parameters; a frozen one stays unchanged."""
    plain = parameters_of(((6, 70, 3, 3), (70, 50), (20, 5)))
    odd = parameters_of(((6, 70, 3, 3), (70, 50), (20, 5)))
    odd[0].data = odd[0].data.to(memory_format=torch.channels_last)
    odd[1].data = odd[1].data.t().contiguous().t()
    frozen = nn.Parameter(torch.ones(5), requires_grad=False)
    model = nn.ParameterList([odd[0], frozen, odd[1], odd[0], odd[2]])  # one tied to itself
    shapes = tuple(tuple(parameter.shape) for parameter in plain)
    for parameters, optimizer in (
        (plain, DeMo(plain, values=values, **VOTE)),
        (odd, DeMo(model.parameters(), values=values, **VOTE)),
    ):
        for step in range(3):
            give(parameters, gradients_of(shapes, step, 0))
            if parameters is odd:
                assert odd[0].grad is not None
                assert odd[2].grad is not None
                odd[0].grad = odd[0].grad.to(memory_format=torch.channels_last)
                odd[2].grad = odd[2].grad.to_sparse()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(plain, odd, strict=True))
    assert torch.equal(frozen, torch.ones(5))


def test_without_gradients_momentum_and_weight_decay_continue() -> None:
    parameters = parameters_of(((64, 64),))
    optimizer = DeMo(parameters, **VOTE)
    optimizer.step()
    assert torch.equal(parameters[0], parameters_of(((64, 64),))[0] * to_float32(1 - to_float32(RATE) * DECAY))
    give(parameters, gradients_of(((64, 64),), 0, 0))
    optimizer.step()
    left = optimizer.state[parameters[0]]["coefficients"].norm()
    optimizer.zero_grad()
    optimizer.step()
    assert 0 < optimizer.state[parameters[0]]["coefficients"].norm() < 0.9 * left


@pytest.mark.parametrize("values", ["vote", "float"])
@pytest.mark.parametrize("bad", [math.nan, -math.inf, 1e19])
def test_a_gradient_that_is_not_finite_drops_the_step(values: Any, bad: float) -> None:
    """The step is dropped for all of the rank's parameters, and counted."""
    parameters = parameters_of(SHAPES)
    optimizer = DeMo(parameters, values=values, precondition="adam")
    steps_of(optimizer, SHAPES, 0, 2)
    before = [parameter.detach().clone() for parameter in parameters]
    name = "coefficients" if values == "vote" else "momentum"
    momentum = optimizer.state[parameters[0]][name].clone()
    give(parameters, gradients_of(SHAPES, 2, 0))
    assert parameters[3].grad is not None
    parameters[3].grad[7] = bad
    optimizer.step()
    assert optimizer.dropped == 1
    assert all(torch.equal(a, b) for a, b in zip(parameters, before, strict=True))
    assert torch.equal(optimizer.state[parameters[0]][name], momentum)


def test_a_closure_has_gradients_enabled_and_a_step_works_under_autocast() -> None:
    (weight,) = parameters_of(((64, 64),))
    (twin,) = parameters_of(((64, 64),))

    def closure() -> float:
        weight.grad = None
        loss = (weight**2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    twin.grad = 2 * twin.detach()
    with torch.autocast("cpu", torch.bfloat16):
        loss = DeMo([weight]).step(closure)
    DeMo([twin]).step()
    assert loss == pytest.approx((parameters_of(((64, 64),))[0] ** 2).sum().item(), rel=1e-2)
    assert torch.equal(weight, twin)


# its state


# its settings


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"compression_chunk": 32}, "compression_chunk must be 64 with values='vote'.*use values='float'"),
        ({"compression_decay": 1.0}, "compression_decay must be 0 or more, and less than 1; it is 1.0"),
        ({"compression_topk": 0}, "compression_topk must be a whole number, 1 or more; it is 0"),
        ({"update_topk": 5000}, "update_topk must be a whole number, 0 to 4096; it is 5000"),
        ({"update_topk": 8, "values": "float", "compression_chunk": 32}, "update_topk must be 0 with values='float'"),
        ({"values": "votes"}, "values must be one of vote, float; it is 'votes'"),
        ({"values": "float", "magnitude": "clipped"}, "magnitude must be 'sign' with values='float'"),
        ({"precondition": "rms"}, "precondition must be one of none, adam"),
        ({"lr": "a"}, "lr must be a number; it is 'a'"),
        ({"weight_decay": None}, "weight_decay must be a number; it is None"),
        ({"compression_decay": "a"}, "compression_decay must be 0 or more, and less than 1; it is 'a'"),
        ({"lr": -1.0}, "lr and weight_decay must be 0 or more"),
        ({"lr": 1e39}, "lr a float32"),
        ({"lr": 1.0, "weight_decay": 1.0}, "lr · weight_decay must be less than 1"),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DeMo(parameters_of(SHAPES), **wrong)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_parameters_of_another_dtype_are_refused(kind: torch.dtype) -> None:
    with pytest.raises(ConfigError, match="Keep float32 masters"):
        DeMo([nn.Parameter(torch.ones(3, dtype=kind))])


def test_settings_may_change_between_steps_but_not_what_is_trained() -> None:
    parameters = parameters_of(SHAPES)
    optimizer = DeMo(parameters, compression_decay=0.9)
    steps_of(optimizer, SHAPES, 0, 2)
    momentum = optimizer.state[parameters[0]]["coefficients"].clone()
    optimizer.param_groups[0]["compression_topk"] = 4096
    steps_of(optimizer, SHAPES, 2, 3)
    assert not torch.equal(optimizer.state[parameters[0]]["coefficients"], momentum)
    optimizer.add_param_group({"params": parameters_of(((5, 5),))})
    steps_of(optimizer, (*SHAPES, (5, 5)), 3, 4)
    assert [int(optimizer.state[p[0]]["step"]) for p in (parameters, optimizer.param_groups[1]["params"])] == [4, 1]
    parameters[2].requires_grad_(False)
    with pytest.raises(ConfigError, match="requires_grad of parameter 2 of param group 0 has changed"):
        optimizer.step()


def test_importing_the_package_does_not_load_torch() -> None:
    code = "import sys, thinwire; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "settings",
    [{}, {"values": "float"}, {"precondition": "adam", "magnitude": "clipped", "update_topk": 9}],
    ids=["votes", "floats", "magnitudes"],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_of_a_script_changes_nothing(settings: dict[str, Any], dtype: torch.dtype) -> None:
    ends = []
    for default in (torch.float32, dtype):
        parameters = parameters_of(SHAPES)
        gradients = [gradients_of(SHAPES, step, 0) for step in range(2)]
        torch.set_default_dtype(default)
        try:
            optimizer = DeMo(parameters, lr=RATE, **settings)
            for of_step in gradients:
                give(parameters, of_step)
                optimizer.step()
        finally:
            torch.set_default_dtype(torch.float32)
        ends.append(parameters)
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_rates_at_the_end_of_a_cosine_may_differ_by_their_rounding() -> None:
    check_equal_rates([[(7e-16, 0.1)], [(9e-16, 0.1)]])
    with pytest.raises(ConfigError, match="lr of param group 0"):
        check_equal_rates([[(7e-6, 0.1)], [(9e-6, 0.1)]])
