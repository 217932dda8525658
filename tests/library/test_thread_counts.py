"""Compress, look ahead, apply and fingerprint have the same bits for any number of threads and any size of batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from support.looking_ahead import looked_ahead
from thinwire.compression import compress
from thinwire.compression.momentum import Momentum
from thinwire_proto.contract import DemoSpec, Parameter, RunSpec
from thinwire_proto.exact import apply, fingerprint
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.apply import apply_votes
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout

LAYOUT = TileLayout(
    [
        Parameter(name="a", shape=(200, 700)),
        Parameter(name="b", shape=(777,)),
        Parameter(name="c", shape=(64, 1024)),
        Parameter(name="d", shape=(3, 130, 5)),
        Parameter(name="e", shape=(40,)),
    ]
)
K, ROUNDS = 20, 3


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def drawn(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {tensor.name: torch.randn(tensor.shape, generator=generator) for tensor in LAYOUT.tensors}


def everything(demo: DemoSpec, k: int) -> list[Tensor]:
    """All results of some rounds of a node whose gradients leave one tensor out, so some tiles hold only zeros."""
    momentum, theta = Momentum(LAYOUT, demo, "cpu"), drawn(0)
    results: list[Tensor] = []
    for step in range(ROUNDS):
        gradients = drawn(1 + step) | {"c": torch.zeros(64, 1024)}
        if step == 1:
            momentum.accumulate(gradients, 0.01, 3)
        sent = momentum.accumulate_and_extract(gradients, 0.01, 3, k)
        results += [sent.components, sent.values] + ([] if sent.codes is None else [sent.codes])
        ahead = looked_ahead(momentum, sent, LAYOUT)
        merger = merger_of(RunSpec(demo=demo), LAYOUT, step)
        merger.add(sent.votes(), 1)
        apply_votes(theta, merger.merged(), LAYOUT, demo, learning_rate=2.0**-10, decay=0.5, step=step)
        number = fingerprint.fingerprint(theta.values(), 7)
        results += [ahead, torch.tensor([number >> 32, number & 0xFFFFFFFF])]
    return [*results, momentum.buffer, *theta.values()]


@pytest.mark.parametrize(
    ("magnitude", "precondition", "levels"),
    [
        *((magnitude, kind, 0) for magnitude in ("sign", "clipped", "tile") for kind in ("none", "adam")),
        ("tile", "none", 3),
    ],
)
def test_threads_and_batches_change_no_bit(
    magnitude: str, precondition: str, levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = MATRIX_COMPONENTS if levels else K
    given = {"k": k, "magnitude": magnitude, "precondition": precondition, "update_levels": levels}
    demo = DemoSpec.model_validate(given)
    expected: list[Tensor] = []
    for batch in (1, 7):
        monkeypatch.setattr(compress, "tile_batch", lambda device, batch=batch: batch)
        monkeypatch.setattr(apply, "tile_batch", lambda device, batch=batch: batch)
        monkeypatch.setattr(fingerprint, "CACHED_CHUNK", 1 << 10)
        monkeypatch.setattr(fingerprint, "BATCH", batch << 10)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found = everything(demo, k)
            expected = expected or found
            for number, (one, other) in enumerate(zip(found, expected, strict=True)):
                assert torch.equal(one, other), f"result {number} with {threads} threads and batches of {batch} tiles"
