"""The decode gives the same bits for any number of threads, any batch size and any global precision setting."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from thinwire_proto.contract import DemoSpec
from thinwire_proto.errors import LocalError
from thinwire_proto.exact import decode as decode_module
from thinwire_proto.exact.decode import clipped, directions, inverse_exact, pinned_precision, scale_votes
from thinwire_proto.exact.selftest import extreme_tiles, reference_signs, run_selftest
from thinwire_proto.exact.transform import (
    BASIS_MAX,
    COLUMN_SUM_MAX,
    dct_table,
    float_basis,
    forward,
    integer_basis,
    inverse,
)

CPU = torch.device("cpu")


@pytest.fixture
def restored() -> Iterator[None]:
    """Restores torch's global settings."""
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.set_num_threads(threads)


def decode(merged: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode int16 [n, 64, 64] or [n, 64] to (whether each sign is +, whether each tile steps), with the functions of
    `apply`."""
    tile, position = merged.flatten(1).nonzero(as_tuple=True)
    votes, stepped = scale_votes(merged.flatten(1)[tile, position], tile, len(merged))
    scaled = torch.zeros(merged.flatten(1).shape)
    scaled[tile, position] = votes
    found = directions(scaled.view(merged.shape), step)
    assert bool((found.abs() % 1 == 0.5).all())  # never 0, and nothing was rounded away
    return found > 0, stepped


def scaled_tiles() -> torch.Tensor:
    """V' of the extreme tiles, float32 [n, 64, 64]."""
    merged = tiles_of().flatten(1)
    tile, position = merged.nonzero(as_tuple=True)
    scaled = torch.zeros(merged.shape)
    scaled[tile, position] = scale_votes(merged[tile, position], tile, len(merged))[0]
    return scaled.view(-1, 64, 64)


def tiles_of() -> torch.Tensor:
    return torch.from_numpy(extreme_tiles().astype(np.int16))


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_float32_equals_int64_on_tiles_at_the_bounds(step: int, dimensions: int) -> None:
    merged = extreme_tiles()
    merged = merged if dimensions == 2 else merged[:, :, 0]
    positive, stepped = decode(torch.from_numpy(merged.astype(np.int16)), step)
    expected, expected_stepped = reference_signs(merged, step)
    assert np.array_equal(positive.numpy(), expected)
    assert np.array_equal(stepped.numpy(), expected_stepped)
    assert not stepped[0]  # the tile without votes


def test_python_integers_give_the_same_signs() -> None:
    """A deliberately simple reference: no matrices, no numpy, a few positions of a few tiles."""
    table = [[int(v) for v in row] for row in integer_basis(CPU).numpy()]
    merged = extreme_tiles()[[1, 2, 20, 30, 40]]
    positive, _ = decode(torch.from_numpy(merged.astype(np.int16)), 0)
    for tile, votes in enumerate(merged.tolist()):
        largest = max(abs(v) for row in votes for v in row)
        scaled = [[((v > 0) - (v < 0)) * ((254 * abs(v) + largest) // (2 * largest)) for v in row] for row in votes]
        for i, j in ((0, 0), (0, 1), (13, 57), (63, 63)):
            passes = [sum(table[k][i] * scaled[k][c] for k in range(64)) for c in range(64)]
            passes = [(value + 256) // 512 for value in passes]
            x = sum(passes[c] * table[c][j] for c in range(64))
            assert bool(positive[tile, i, j]) == (x > 0 or (x == 0 and (64 * i + j) % 2 == 0))


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.usefixtures("restored")
def test_threads_and_global_precision_do_not_change_the_result(threads: int, precision: str) -> None:
    expected, _ = reference_signs(extreme_tiles(), 3)
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    positive, _ = decode(tiles_of(), 3)
    assert np.array_equal(positive.numpy(), expected)
    assert torch.get_float32_matmul_precision() == precision  # and the program's setting is left as it was


def test_float_decode_differs() -> None:
    """The negative control: the published inverse in floating point (arXiv 2411.19870) does not give these signs."""
    merged = extreme_tiles()
    x = inverse(torch.from_numpy(merged.astype(np.float32)))
    expected, stepped = reference_signs(merged, 0)
    assert bool(((x.numpy() > 0) != expected)[stepped & (x != 0).flatten(1).all(1).numpy()].any())


@pytest.mark.parametrize("magnitude", ["sign", "clipped"])
def test_self_test_passes_and_detects_a_float_decode(magnitude: str, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = DemoSpec.model_validate({"magnitude": magnitude})
    assert run_selftest(demo, "cpu").passed

    def in_float(scaled: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        return inverse(scaled) * (1 + 1e-7)

    monkeypatch.setattr(decode_module, "inverse_exact", in_float)
    found = run_selftest(demo, "cpu")
    assert not found.exact
    assert found.control_differs
    assert "differ from the integer reference" in found.detail


def test_autocast_is_refused() -> None:
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(LocalError, match="autocast"):
        decode(tiles_of(), 0)


def test_scaling_equals_integer_division_where_rounding_could_show() -> None:
    """For every largest vote M, the votes next to each edge of ⌊(254·|V| + M) / 2M⌋."""
    largest = np.arange(1, 1 << 15)[:, None]
    edge = -(-(2 * np.arange(1, 128) * largest - largest) // 254)  # the least |V| that gives 1, 2, … 127
    votes = np.concatenate([edge, edge - 1, largest], axis=1).clip(1, largest)
    expected = (254 * votes + largest) // (2 * largest)
    tile = torch.arange(len(largest)).repeat_interleave(votes.shape[1])
    found, _ = scale_votes(torch.from_numpy(votes.astype(np.int16).reshape(-1)), tile, len(largest))
    assert np.array_equal(found.numpy().reshape(votes.shape), expected)


@pytest.mark.parametrize("dimensions", [1, 2])
def test_clipped_step_equals_its_formula(dimensions: int) -> None:
    """Compared with the formula in float64; batches and their order do not change the bits."""
    tiles = scaled_tiles().to(torch.int8)
    tiles = tiles if dimensions == 2 else tiles[:, :, 0].contiguous()
    step = clipped(tiles, 0.5)
    with pinned_precision():
        x = inverse_exact(tiles.float(), torch.empty(tiles.shape)).double()
    mean = x.abs().flatten(1).mean(1).view(-1, *[1] * dimensions)
    plain = 0.5 * (x / (decode_module.CLIP * mean)).clamp(-1, 1)
    assert torch.allclose(step.double(), plain.nan_to_num(), atol=1e-7)
    assert bool((step[0] == 0).all())  # the tile without votes
    assert 0.1 < (step.abs() == 0.5).float().mean() < 0.9  # some are clipped, and some are not
    order = torch.randperm(len(tiles), generator=torch.Generator().manual_seed(1))
    assert torch.equal(clipped(tiles[order], 0.5), step[order])
    assert torch.equal(torch.cat([clipped(one[None], 0.5) for one in tiles]), step)


def test_the_dct_table_is_the_rounded_basis() -> None:
    basis = [
        [math.sqrt((1 if k == 0 else 2) / 64) * math.cos(math.pi * (2 * n + 1) * k / 128) for n in range(64)]
        for k in range(64)
    ]
    largest = max(abs(value) for row in basis for value in row)
    assert dct_table() == [[round(127 * value / largest) for value in row] for row in basis]


def test_the_bounds_of_the_decode_hold() -> None:
    table = np.abs(np.array(dct_table()))
    assert table.max() == BASIS_MAX
    assert table.sum(0).max() == COLUMN_SUM_MAX
    after_shift = math.floor(127 * COLUMN_SUM_MAX / 512 + 0.5)
    assert 127 * COLUMN_SUM_MAX == 661_035
    assert after_shift <= 1292
    assert after_shift * COLUMN_SUM_MAX < 2**24


@pytest.mark.parametrize("shape", [(3, 64, 64), (5, 64)])
def test_float_transforms_are_orthonormal(shape: tuple[int, ...]) -> None:
    basis = float_basis(CPU)
    assert torch.allclose(basis @ basis.T, torch.eye(64), atol=1e-6)
    tiles = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    coefficients = forward(tiles)
    assert torch.allclose(inverse(coefficients), tiles, atol=1e-5)
    assert torch.allclose(coefficients.norm(), tiles.norm(), rtol=1e-5)
