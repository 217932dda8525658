"""Every parameter has one place in tile space, and comes back from it."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire_proto.contract import Parameter
from thinwire_proto.tiles import TileLayout, band_of, untile

shapes = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 200)),
        st.tuples(st.integers(1, 150), st.integers(1, 150)),
        st.tuples(st.integers(1, 70), st.integers(1, 5), st.integers(1, 40)),
    ),
    min_size=1,
    max_size=4,
)


def layout_of(found: list[tuple[int, ...]]) -> TileLayout:
    return TileLayout([Parameter(name=f"t{number}", shape=shape) for number, shape in enumerate(found)])


@given(shapes, st.integers(1, 4))
def test_tensors_come_back_from_tile_space_and_the_padding_is_zero(
    found: list[tuple[int, ...]], tile_rows: int
) -> None:
    layout = layout_of(found)
    flat = torch.zeros(layout.components)
    total = 0.0
    for number, tensor in enumerate(layout.tensors):
        values = torch.arange(1, 1 + int(np.prod(tensor.shape)), dtype=torch.float32).view(tensor.shape) + number
        layout.add_into(flat, tensor, values)
        total += float(values.double().sum())
        kind = layout.matrices(flat) if tensor.is_matrix else layout.vectors(flat)
        for band, tiles in layout.bands(tensor, tile_rows):
            part = band_of(values, tensor, band)
            assert torch.equal(untile(kind[tiles], tensor, part.shape[0]), part)
    assert float(flat.double().sum()) == total
    assert layout.parameters == sum(int(np.prod(shape)) for shape in found)


@given(shapes)
def test_each_component_belongs_to_one_tile(found: list[tuple[int, ...]]) -> None:
    layout = layout_of(found)
    sizes = np.bincount(layout.tile_of(np.arange(layout.components)), minlength=layout.tiles)
    assert sizes.tolist() == [4096] * layout.matrix_tiles + [64] * layout.vector_tiles


def test_a_tile_is_a_64_by_64_block_in_row_major_order() -> None:
    layout = layout_of([(128, 192)])
    values = torch.arange(128 * 192, dtype=torch.float32).view(128, 192)
    flat = torch.zeros(layout.components)
    layout.add_into(flat, layout.tensors[0], values)
    assert torch.equal(layout.matrices(flat)[4], values[64:, 64:128])
