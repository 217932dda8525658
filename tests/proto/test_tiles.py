"""Each parameter has one position in tile space, and can be read back from it."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire_proto.contract import Parameter
from thinwire_proto.exact.tiles import TileLayout

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


@given(shapes)
def test_tensors_round_trip_through_tile_space_and_padding_is_zero(found: list[tuple[int, ...]]) -> None:
    layout = layout_of(found)
    flat = torch.zeros(layout.components)
    total = 0.0
    for number, tensor in enumerate(layout.tensors):
        values = torch.arange(1, 1 + int(np.prod(tensor.shape)), dtype=torch.float32).view(tensor.shape) + number
        layout.add_into(flat, tensor, values)
        total += float(values.double().sum())
        tiles = layout.tiles_of(flat, tensor)
        if tensor.is_matrix:
            tiles = tiles.view(tensor.tile_rows, tensor.tile_columns, 64, 64).transpose(1, 2)
        padded = tiles.reshape(-1, 64 * tensor.tile_columns)
        assert torch.equal(padded[: tensor.rows, : tensor.columns], values.view(tensor.rows, tensor.columns))
    assert float(flat.double().sum()) == total
    assert layout.parameters == sum(int(np.prod(shape)) for shape in found)


@given(shapes, st.integers(1, 9))
def test_batches_are_bounded_and_cover_each_value_once(found: list[tuple[int, ...]], tiles_max: int) -> None:
    """Batches walk tile space in its order, and the values of a tensor are where `add_into` puts them."""
    layout = layout_of(found)
    tensors = {tensor.name: torch.rand(tensor.shape) + 0.1 for tensor in layout.tensors}
    flat, end = torch.zeros(layout.components), {True: 0, False: 0}
    for tensor in layout.tensors:
        layout.add_into(flat, tensor, tensors[tensor.name])
    seen = {tensor.name: torch.zeros(tensor.shape) for tensor in layout.tensors}
    for batch in layout.batches(tiles_max):
        tiles = (layout.matrices if batch.is_matrix else layout.vectors)(flat)[batch.tiles]
        assert tiles.numel() <= tiles_max * 4096
        assert batch.tiles.start == end[batch.is_matrix]
        end[batch.is_matrix] = batch.tiles.stop
        for part in batch.parts:
            rest = tiles[part.tiles].clone()
            for of_band, of_tiles in part.pieces(part.band(tensors[part.tensor.name]), tiles):
                assert torch.equal(of_band, of_tiles)
            for of_band, _ in part.pieces(part.band(seen[part.tensor.name]), tiles):
                of_band.add_(1)
            assert part.is_padded == bool((rest == 0).any())
    assert end == {True: layout.matrix_tiles, False: layout.vector_tiles}
    assert all(bool((times == 1).all()) for times in seen.values())
