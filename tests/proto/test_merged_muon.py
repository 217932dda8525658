"""The step of the rule `merged_muon`: the same bits as integers give, and moments that belong to the replica."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.small import random_replica, shapes_contract
from thinwire_proto.contract import Contract, MergedMuonSpec
from thinwire_proto.errors import ContractError, ReplicaError
from thinwire_proto.exact import merged_step
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.apply import decode_gradients
from thinwire_proto.exact.merged_reference import merged_steps_differ, reference_orthogonal
from thinwire_proto.exact.merged_step import power
from thinwire_proto.exact.orthogonal import orthogonal_exact
from thinwire_proto.exact.replica import Replica, check_snapshot, load_replica
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import WholeVotes
from thinwire_proto.muon import orthogonal

RATE = 0.0078125


def contract_of(**demo: object) -> Contract:
    return shapes_contract(rule={"kind": "merged_muon", "adamw_for": ["t0"]}, demo=demo)


def update_of(contract: Contract, step: int) -> Update:
    """Random votes of two nodes, merged."""
    layout, rng = layout_of(contract.parameters), np.random.default_rng(step)
    merger = merger_of(contract, layout, step)
    for weight in (3, 2):
        levels = rng.integers(-2, 3, layout.components).astype(np.int8)
        merger.add(WholeVotes(levels, rng.integers(60, 120, layout.tiles).astype(np.uint8), 2), weight)
    return Update(step, RATE, 1.0, merger.merged())


def moved(replica: Replica, steps: int) -> Replica:
    for step in range(replica.step, replica.step + steps):
        replica.apply(update_of(replica.contract, step), bytes([step]) * 32)
    return replica


@given(st.integers(1, 40), st.integers(1, 40), st.integers(-60, 60), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_orthogonal_equals_products_of_integers(rows: int, columns: int, exponent: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).normal(0, 2.0**exponent, (rows, columns)).astype(np.float32)
    found = orthogonal_exact(torch.from_numpy(matrix))
    assert np.array_equal(found.numpy(), reference_orthogonal(matrix.astype(np.float64)))


@pytest.mark.parametrize("shape", [(64, 64), (48, 160), (160, 48)])
def test_orthogonal_is_that_of_muon_but_for_the_rounding_of_operands(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    exact, float32 = orthogonal_exact(matrix), orthogonal(matrix)
    assert (exact - float32).norm() / float32.norm() < 0.002


def test_orthogonal_of_nothing_is_nothing() -> None:
    assert not orthogonal_exact(torch.zeros(3, 5)).any()
    assert not orthogonal_exact(torch.full((3, 5), 2.0**-120)).any()


@pytest.mark.parametrize("small", [merged_step.SMALL, 64])
def test_steps_equal_those_of_plain_numpy(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a tensor is taken in parts, and where all threads share one."""
    monkeypatch.setattr(merged_step, "SMALL", small)
    assert merged_steps_differ(MergedMuonSpec(), "cpu") == 0


def test_the_comparison_sees_a_fused_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_step, "orthogonal_exact", lambda matrix: orthogonal(matrix).double())
    assert merged_steps_differ(MergedMuonSpec(), "cpu") > 0


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_no_bit(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = moved(random_replica(contract_of()), 3).state_hash()
    finally:
        torch.set_num_threads(before)
    assert found == moved(random_replica(contract_of()), 3).state_hash()


def test_a_step_is_that_of_muon_and_of_adam_by_rows() -> None:
    """Beside a float twin of the formulas."""
    contract = contract_of()
    rule, replica = contract.rule, random_replica(contract)
    assert isinstance(rule, MergedMuonSpec)
    theta = {name: tensor.clone().double() for name, tensor in replica.tensors.items()}
    gradients = [_gradient_of(replica, step) for step in range(3)]
    momentum = {name: torch.zeros_like(tensor) for name, tensor in theta.items()}
    second = {name: torch.zeros(tensor.shape[0] if tensor.dim() > 1 else 1).double() for name, tensor in theta.items()}
    for step, of_step in enumerate(gradients):
        moved(replica, 1)
        for one in contract.parameters:
            g, m = of_step[one.name].double(), momentum[one.name]
            m.mul_(0.9).add_(g)
            if rule.takes(one):
                theta[one.name] -= RATE * 0.2 * max(g.shape) ** 0.5 * orthogonal((g + 0.9 * m).float())
                continue
            rows = g.reshape(len(second[one.name]), -1)
            v = second[one.name].mul_(0.99).add_(rows.square().mean(1), alpha=0.01)
            mean, square = 0.1 * m / (1 - 0.9 ** (step + 1)), v / (1 - 0.99 ** (step + 1))
            change = mean.reshape(rows.shape) / square.sqrt()[:, None]
            theta[one.name] -= RATE * rule.adamw_rate * change.view(g.shape)
    for name, tensor in theta.items():
        assert torch.allclose(replica.tensors[name].double(), tensor, atol=1e-5)


def _gradient_of(replica: Replica, step: int) -> dict[str, Tensor]:
    merged = update_of(replica.contract, step).merged
    return decode_gradients(merged, replica.layout, replica.contract.demo, step=step, device=replica.device)


def test_moments_are_in_snapshots_fingerprints_and_copies(tmp_path: Path) -> None:
    replica = moved(random_replica(contract_of()), 2)
    path = tmp_path / "s.safetensors"
    replica.save(path)
    again = load_replica(replica.contract, path)
    assert check_snapshot(replica.contract, path) == replica.head
    assert all(torch.equal(again.state[name], tensor) for name, tensor in replica.state.items())
    copy = replica.clone()
    for one in (replica, again, copy):
        moved(one, 1)
    assert replica.state_hash() == again.state_hash() == copy.state_hash()
    copy.moments["momentum:t1"][3, 4] += 1
    assert copy.fingerprint(5) != replica.fingerprint(5)
    assert copy.state_hash() != replica.state_hash()


def test_only_a_first_state_begins_without_moments() -> None:
    replica = moved(random_replica(contract_of()), 2)
    assert not any(tensor.any() for tensor in Replica(replica.contract, replica.tensors, 0, b"").moments.values())
    with pytest.raises(ReplicaError, match="momentum:t0 is missing"):
        Replica(replica.contract, replica.tensors, 2, b"")
    some = replica.tensors | {"momentum:t0": replica.moments["momentum:t0"]}
    with pytest.raises(ReplicaError, match="momentum:t1 is missing"):
        Replica(replica.contract, some, 0, b"")


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"demo": {"beta": 0.9}}, "demo.beta must be 1.0"),
        ({"demo": {"magnitude": "clipped", "vote_levels": 0, "update_levels": 0}}, "demo.magnitude must be 'tile'"),
        ({"demo": {"k": 96}}, "demo.vote_levels needs"),
        ({"round": {"base_age_max": 1}}, "round.base_age_max must be 0"),
        ({"round": {"nodes_max": 2048}}, "demo.vote_levels must be at most 32767"),
        ({"rule": {"kind": "demo"}, "demo": {"beta": 1.0}}, "demo.beta must be below 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(sections: dict[str, dict[str, object]], said: str) -> None:
    with pytest.raises((ContractError, ValueError), match=said):
        shapes_contract(**{"rule": {"kind": "merged_muon"}} | sections)


def test_powers_are_products() -> None:
    assert power(0.9, 0) == 1
    assert power(0.9, 1000) == pytest.approx(0.9**1000, rel=1e-12)
