"""Updates with magnitudes: the same bits in any order and on any device, and a step of the right size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from support.small import random_replica, random_votes, shapes_contract
from thinwire_proto.contract import WEIGHT_SUM_MAX, DemoSpec
from thinwire_proto.exact import apply as apply_module
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.decode import VOTE_MAX, displacements
from thinwire_proto.exact.magnitudes import OCTAVE, TABLE, UNIT, coded, tiles_with
from thinwire_proto.exact.selftest import extreme_tiles, reference_integers, reference_scaled, run_selftest
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.transform import inverse
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Merged, Votes

SIZED = shapes_contract(demo={"magnitude": "tile"})
LAYOUT = TileLayout(SIZED.parameters)


def merge_sized(contributions: list[tuple[Votes, int]], outer_rate: float = 1.0) -> Merged:
    contract = shapes_contract(demo={"magnitude": "tile"}, rule={"outer_rate": outer_rate})
    merger = merger_of(contract, LAYOUT, 0)
    for votes, weight in contributions:
        merger.add(votes, weight)
    merged = merger.merged()
    assert isinstance(merged, Merged)
    return merged


def test_the_table_is_the_published_one() -> None:
    assert [round(128 * 2 ** (i / 8)) for i in range(8)] == list(OCTAVE)
    assert TABLE[:10].tolist() == [128, 140, 152, 166, 181, 197, 215, 235, 256, 280]
    assert int(TABLE[255]) == 235 << 31
    assert (TABLE[8:] == 2 * TABLE[:-8]).all()


def test_code_is_the_nearest_and_its_value_is_an_exact_float32() -> None:
    magnitudes = torch.logspace(-8.3, 1.1, 500)
    codes, values = coded(magnitudes)
    assert ((values / magnitudes - 1).abs() < 0.05).all()
    assert values.double().tolist() == [int(TABLE[code]) * UNIT for code in codes.tolist()]
    again, same = coded(values)
    assert torch.equal(again, codes)
    assert torch.equal(same, values)


def test_the_largest_possible_votes_do_not_overflow() -> None:
    everything = Votes(
        np.arange(LAYOUT.components), np.ones(LAYOUT.components, np.bool_), np.full(LAYOUT.tiles, 255, np.uint8)
    )
    merged = merge_sized([(everything, WEIGHT_SUM_MAX - 1), (everything, 1)])
    assert (merged.values == VOTE_MAX).all()
    assert len(merged) == LAYOUT.components
    merger = merger_of(SIZED, LAYOUT, 0)
    merger.add(everything, WEIGHT_SUM_MAX)
    with pytest.raises(ValueError, match="32767"):
        merger.add(everything, 1)


@pytest.mark.parametrize("outer_rate", [1.0, 0.7])
def test_the_step_is_the_mean_of_the_contributions(outer_rate: float) -> None:
    """Compared with floating-point arithmetic: outer_rate · T⁻¹(Σ w·s·a / Σw), within a few per cent in each tensor."""
    contract = shapes_contract(demo={"magnitude": "tile"}, rule={"outer_rate": outer_rate})
    contributions = []
    for node in range(3):
        votes = random_votes(LAYOUT, 32, node)
        tiles, _ = tiles_with(votes.components, LAYOUT)
        codes = np.full(len(tiles), 160, np.uint8)  # all nodes have one size, so the median is it
        contributions.append((replace(votes, codes=codes), node + 1))
    mean = torch.zeros(LAYOUT.components, dtype=torch.float64)
    for votes, weight in contributions:
        assert votes.codes is not None
        _, counts = tiles_with(votes.components, LAYOUT)
        size = np.repeat(TABLE[votes.codes] * UNIT, counts) * np.where(votes.positive, 1, -1) * weight / 6
        mean[torch.from_numpy(votes.components)] += torch.from_numpy(size)
    flat = torch.cat(
        [inverse(LAYOUT.matrices(mean.float())).flatten(), inverse(LAYOUT.vectors(mean.float())).flatten()]
    )
    moved = random_replica(contract)
    before = {name: tensor.clone() for name, tensor in moved.tensors.items()}
    moved.apply(Update(0, 0.5, 1.0, merge_sized(contributions, outer_rate)), b"")
    # the replica's change in tile space; the expected change is tiled the same way, so padding does not matter
    for tensor in LAYOUT.tensors:
        found, expected = torch.zeros(LAYOUT.components), torch.zeros(LAYOUT.components)
        LAYOUT.add_into(found, tensor, before[tensor.name] - moved.tensors[tensor.name])
        LAYOUT.add_into(expected, tensor, torch.ones(tensor.shape))
        expected *= outer_rate * flat
        assert (found - expected).norm() <= 0.05 * expected.norm()
        if expected.norm() > 0:
            assert (found @ expected / (expected @ expected)).item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_a_displacement_is_the_exact_integer_times_the_scale_rounded_once(threads: int, dimensions: int) -> None:
    scaled = reference_scaled(extreme_tiles())
    scaled = scaled if dimensions == 2 else scaled[:, :, 0]
    x = reference_integers(scaled)
    assert np.abs(x).max() < 1 << 24
    scale = np.float32(0.37e-6)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = displacements(torch.from_numpy(scaled.astype(np.int8)), torch.tensor(scale))
    finally:
        torch.set_num_threads(before)
    exact = x.astype(np.float64) * np.float64(scale)  # a product of two 24-bit numbers is exact in float64
    assert np.array_equal(found.numpy(), exact.astype(np.float32))


def test_self_test_detects_a_float_displacement(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_float(scaled: torch.Tensor, scale: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        return 1000 * inverse(scaled.float()) * scale

    monkeypatch.setattr(apply_module, "displacements", in_float)
    assert not run_selftest(DemoSpec(), "cpu").exact
