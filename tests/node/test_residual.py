"""A node puts back exactly the components that an update dropped from its contribution, decayed, and only once."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small import SHAPES, random_votes, shapes_contract
from thinwire_node.compression.momentum import Momentum
from thinwire_node.compression.residual import Awaited, Pending
from thinwire_node.compression.sent import Sent
from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.topk import TopkSelection
from thinwire_proto.exact.votes import merge

LAYOUT = TileLayout(shapes_contract().parameters)
K = 16


def extraction(alpha: float = 1.0) -> tuple[Momentum, Sent]:
    spec = DemoSpec(precondition="none", beta=0.5, alpha=alpha)
    momentum = Momentum(LAYOUT, spec, "cpu")
    generator = torch.Generator().manual_seed(1)
    momentum.accumulate({f"t{n}": torch.randn(shape, generator=generator) for n, shape in enumerate(SHAPES)}, 0.1)
    return momentum, momentum.extract(K)


@given(st.integers(1, 24), st.integers(0, 2), st.sampled_from([0.25, 1.0]))
@settings(max_examples=15, deadline=None)
def test_exactly_the_dropped_components_are_put_back(update_topk: int, extractions_between: int, alpha: float) -> None:
    momentum, sent = extraction(alpha)
    other = random_votes(LAYOUT, K, 5)
    merged = merge([(sent.votes(), 1), (other, 1)], LAYOUT.components, TopkSelection(LAYOUT, update_topk, 3))
    zero = {f"t{number}": torch.zeros(shape) for number, shape in enumerate(SHAPES)}
    for _ in range(extractions_between):
        momentum.accumulate(zero, 0.1)
    before = momentum.buffer.clone()
    awaited = Awaited(update_topk)
    awaited.add(Pending(b"h", sent, 3))
    assert list(awaited.applied(2, [b"of another round"], merged, LAYOUT)) == []
    for part in awaited.applied(3, [b"h"], merged, LAYOUT):
        momentum.put_back(part)
    assert list(awaited.applied(3, [b"h"], merged, LAYOUT)) == []

    held = set(merged.components.tolist())
    in_tile = np.bincount(LAYOUT.tile_of(merged.components), minlength=LAYOUT.tiles)
    expected = torch.zeros_like(before)
    for component, value in zip(sent.components.tolist(), sent.values.tolist(), strict=True):
        tile = int(LAYOUT.tile_of(np.array([component]))[0])
        if component not in held and in_tile[tile] == update_topk:
            expected[component] = alpha * 0.5**extractions_between * value
    assert torch.allclose(momentum.buffer - before, expected, atol=1e-6)
    assert update_topk > K or expected.any()
