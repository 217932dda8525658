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
from thinwire_proto.contract import Contract, MergedMuonSpec, Parameter
from thinwire_proto.errors import ContractError, ReplicaError
from thinwire_proto.exact import merged_step
from thinwire_proto.exact import orthogonal as orthogonal_module
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.apply import decode_gradients
from thinwire_proto.exact.magnitudes import rounded
from thinwire_proto.exact.merged_step import CLIP_SQUARES, power
from thinwire_proto.exact.orthogonal import mean_squares, orthogonal_exact
from thinwire_proto.exact.replica import Replica, check_snapshot, load_replica
from thinwire_proto.exact.selftest import merged_steps_differ, reference_orthogonal
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Levels, WholeVotes
from thinwire_proto.muon import orthogonal

RATE = 0.0078125


def contract_of(**demo: object) -> Contract:
    return shapes_contract(rule={"kind": "merged_muon", "adamw_for": ["t0"]}, demo=demo)


def update_of(contract: Contract, step: int) -> Update:
    """Random votes of two nodes, merged."""
    layout, rng = layout_of(contract.parameters), np.random.default_rng(step)
    merger = merger_of(contract, layout, step)
    for weight in (3, 2):
        levels = rng.integers(-3, 4, layout.components).astype(np.int8)
        merger.add(WholeVotes(levels, rng.integers(88, 97, layout.tiles).astype(np.uint8), 3), weight)
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
            if rule.takes(one):
                m.mul_(0.9).add_(g)
                theta[one.name] -= RATE * 0.2 * max(g.shape) ** 0.5 * orthogonal((g + 0.9 * m).float())
                continue
            rows, v = g.reshape(len(second[one.name]), -1), second[one.name]
            most = CLIP_SQUARES * v / (1 - 0.99**step) if step else torch.zeros_like(v)
            rows = torch.where(most > 0, (most / rows.square().mean(1)).clamp(max=1).sqrt(), 1.0)[:, None] * rows
            m.mul_(0.9).add_(rows.view(g.shape))
            v.mul_(0.99).add_(rows.square().mean(1), alpha=0.01)
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
        ({"round": {"nodes_max": 2048}}, "demo.vote_levels, must be at most 32767"),
        ({"rule": {"kind": "demo"}, "demo": {"beta": 1.0}}, "demo.beta must be below 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(sections: dict[str, dict[str, object]], said: str) -> None:
    with pytest.raises((ContractError, ValueError), match=said):
        shapes_contract(**{"rule": {"kind": "merged_muon"}} | sections)


def test_a_row_that_shouts_once_learns_on() -> None:
    """Without the bound, v would remember a gradient that is a thousand times as large for hundreds of rounds."""
    contract = contract_of()
    replica, name = random_replica(contract), "t3"

    def change_of(factor: float) -> float:
        merged = update_of(contract, replica.step).merged
        assert isinstance(merged, Levels)
        before = replica.tensors[name].clone()
        scales = np.where(merged.scales > 0, rounded(merged.scales.astype(np.float64) * factor), np.float32(0))
        replica.apply(Update(replica.step, RATE, 1.0, Levels(merged.levels, merged.values, scales)), b"\0" * 32)
        return float((replica.tensors[name] - before).norm())

    usual = [change_of(1.0) for _ in range(30)][-1]
    shouted = change_of(1000.0)
    after = [change_of(1.0) for _ in range(40)]
    assert shouted < 10 * usual
    assert after[-1] > usual / 2


def test_long_rows_have_the_same_mean_of_squares_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    row = torch.rand(1, 1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = mean_squares(row)
    monkeypatch.setattr(orthogonal_module, "SIDE_MAX", 64)
    assert torch.equal(mean_squares(row), whole)


def test_a_model_has_the_same_fingerprint_whatever_its_moments() -> None:
    replica = moved(random_replica(contract_of()), 2)
    alone = Replica(replica.contract, replica.tensors, 0, b"")
    assert alone.model_fingerprint() == replica.model_fingerprint()
    assert alone.fingerprint(0) != replica.fingerprint(0)


def test_names_leave_room_for_those_of_moments() -> None:
    contract = contract_of()
    for names in (("x", "momentum:x"), ("n" * 250, "y")):
        parameters = tuple(Parameter(name=name, shape=(2, 3)) for name in names)
        with pytest.raises(ValueError, match=r"different names|256"):
            contract.model_copy(update={"parameters": parameters})


def test_powers_are_products() -> None:
    assert power(0.9, 0) == 1
    assert power(0.9, 1000) == pytest.approx(0.9**1000, rel=1e-12)
