"""Selection finds the largest, ties go to the first, and compression needs at most one batch of tiles of memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from thinwire_node.compression.momentum import Momentum
from thinwire_node.compression.sent import Sent
from thinwire_proto.contract import DemoSpec, Parameter
from thinwire_proto.exact.apply import apply_votes
from thinwire_proto.exact.decode import TILE_BATCH
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout
from thinwire_proto.exact.votes import merge
from thinwire_proto.largest import _largest_of_rows, largest

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


def test_selection_on_other_devices_is_the_same() -> None:
    magnitudes = torch.randint(0, 40, (5, 4096), generator=torch.Generator().manual_seed(1)).float()
    found = _largest_of_rows(magnitudes, 44, mask_for(magnitudes).view(5, 4096))
    assert found.view(-1).nonzero().view(-1).tolist() == reference_largest(magnitudes, 44)


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
