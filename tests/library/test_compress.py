"""Selection finds the largest, ties go to the first, and compression needs at most one batch of tiles of memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from thinwire.compression.compress import Compressor
from thinwire.compression.momentum import Momentum
from thinwire.compression.sent import Sent
from thinwire_proto.contract import DemoSpec, Parameter
from thinwire_proto.exact.apply import apply_votes
from thinwire_proto.exact.decode import TILE_BATCH
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout
from thinwire_proto.exact.votes import merge
from thinwire_proto.largest import largest

BATCH_BYTES = TILE_BATCH * MATRIX_COMPONENTS * 4
KS = [1, 2, 31, 44, 128, 129, 512, 513, 4095, 4096]


def reference_largest(magnitudes: torch.Tensor, k: int) -> list[int]:
    """A deliberately simple reference, by sorting."""
    found = []
    for row, values in enumerate(magnitudes.tolist()):
        first = sorted(range(len(values)), key=lambda position: (-values[position], position))[:k]
        found += sorted(row * len(values) + position for position in first if values[position] > 0)
    return found


def mask_for(magnitudes: torch.Tensor) -> torch.Tensor:
    return torch.empty(magnitudes.numel(), dtype=torch.bool)


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("kind", ["normal", "low frequencies", "few", "many ties", "all equal", "zero", "subnormal"])
def test_exactly_the_largest_are_selected(kind: str, k: int) -> None:
    rng = np.random.default_rng(k)
    values = np.abs(rng.standard_normal((5, 4096)))
    values = {
        "normal": values,
        "low frequencies": values / (1 + np.arange(4096) % 64 + np.arange(4096) // 64) ** 2,
        "few": np.where(rng.random((5, 4096)) < 0.01, values, 0),
        "many ties": np.floor(3 * values),
        "all equal": np.ones((5, 4096)),
        "zero": np.zeros((5, 4096)),
        "subnormal": np.floor(3 * values) * 2.0**-149,
    }[kind]
    magnitudes = torch.from_numpy(values.astype(np.float32))
    magnitudes[2] = 0
    assert largest(magnitudes, k, mask_for(magnitudes)).tolist() == reference_largest(magnitudes, k)


@given(st.integers(1, 4096), st.integers(1, 4), st.integers(0, 1 << 30), st.integers(1, 2000))
@settings(max_examples=40, deadline=None)
def test_exactly_the_largest_are_selected_with_many_ties(k: int, rows: int, seed: int, kinds: int) -> None:
    magnitudes = torch.randint(0, kinds, (rows, 4096), generator=torch.Generator().manual_seed(seed)).float()
    assert largest(magnitudes, k, mask_for(magnitudes)).tolist() == reference_largest(magnitudes, k)


@pytest.mark.parametrize("k", [1, 63, 64, 4096])
def test_the_largest_of_vectors(k: int) -> None:
    magnitudes = torch.randint(0, 30, (9, 64), generator=torch.Generator().manual_seed(k)).float()
    assert largest(magnitudes, k, mask_for(magnitudes)).tolist() == reference_largest(magnitudes, k)


def test_batches_do_not_change_the_selection() -> None:
    """A tile alone gives the same components as among others."""
    spec = DemoSpec(precondition="none")
    tiles = torch.randn(300, 64, 64, generator=torch.Generator().manual_seed(1))
    selected = []
    for number in range(300):
        one = Compressor(spec, "cpu").extract(tiles[number : number + 1].clone(), 44)
        selected += [component + number * MATRIX_COMPONENTS for component in one.components.tolist()]
    momentum = Momentum(TileLayout([Parameter(name="w", shape=(64, 300 * 64))]), spec, "cpu")
    momentum.buffer.copy_(tiles.view(-1))
    assert momentum.extract(44).components.tolist() == selected


# memory


def peak_bytes(work: Callable[[], object]) -> int:
    """Peak memory that torch and numpy allocate during `work`, each measured separately."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        tracemalloc.start()
        work()
        of_numpy = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    now = of_torch = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            of_torch = max(of_torch, now)
    return of_torch + of_numpy


def layout_of(rows: int) -> TileLayout:
    return TileLayout([Parameter(name="w", shape=(rows, 4096))])


@pytest.mark.parametrize("k", [44, 176])
def test_compression_needs_at_most_a_batch_beside_its_result(k: int) -> None:
    """With a matrix of four batches; the compressor's buffers are included."""
    layout = layout_of(4096)
    gradients = {"w": torch.randn(4096, 4096, generator=torch.Generator().manual_seed(1))}
    momentum = Momentum(layout, DemoSpec(), "cpu")
    Momentum(layout_of(64), DemoSpec(), "cpu").accumulate_and_extract({"w": gradients["w"][:64]}, 1e-3, 1, k)
    sent: list[Sent] = []
    peak = peak_bytes(lambda: sent.append(momentum.accumulate_and_extract(gradients, 1e-3, 1, k)))
    returned = sent[0].components.nbytes + sent[0].values.nbytes
    assert peak - returned < BATCH_BYTES < momentum.buffer.nbytes / 3


@pytest.mark.parametrize("magnitude", ["sign", "clipped"])
def test_applying_needs_at_most_a_batch_beside_the_votes(magnitude: str) -> None:
    layout = layout_of(4096)
    demo = DemoSpec.model_validate({"magnitude": magnitude, "precondition": "none"})
    momentum = Momentum(layout, demo, "cpu")
    momentum.buffer.normal_(generator=torch.Generator().manual_seed(1))
    merged = merge([(momentum.extract(8).votes(), 1)], layout.components)
    theta = {"w": torch.zeros(4096, 4096)}
    peak = peak_bytes(lambda: apply_votes(theta, merged, layout, demo, learning_rate=2.0**-10, decay=1.0, step=0))
    votes = merged.components.nbytes + merged.values.nbytes
    assert peak < BATCH_BYTES + 4 * votes
