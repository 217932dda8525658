"""How ranks share a parameter: each number is in one piece, and only rows beside an edge travel."""

from __future__ import annotations

from math import prod

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.demo.shards import Rectangle, Sharing
from thinwire_proto.contract import TILE_EDGE

SHAPES = st.lists(st.integers(1, 300), min_size=1, max_size=3).filter(lambda shape: prod(shape) < 100_000)


@given(shape=SHAPES, ranks=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_held_parts_are_those_of_torch_and_pieces_cover_the_parameter_once(shape: list[int], ranks: int) -> None:
    sharing = Sharing(shape, ranks)
    chunks = [len(part) for part in torch.empty(shape[0]).chunk(ranks)]
    sides = [len(held.rows if sharing.tensor.is_matrix else held.columns) for held in sharing.held]
    assert sides == chunks + [0] * (ranks - len(chunks))
    assert [tile for owned in sharing.tiles for tile in owned] == list(range(sharing.tensor.tiles))
    whole = Rectangle(range(sharing.tensor.rows), range(sharing.tensor.columns))
    seen = torch.zeros(sharing.tensor.rows, sharing.tensor.columns, dtype=torch.int32)
    for rank in range(ranks):
        pieces = sharing.pieces(rank)
        assert len(pieces) <= 3
        tiles = 0
        for piece in pieces:
            piece.of(seen, whole).add_(1)
            tiles += prod(-(-size // TILE_EDGE) for size in sharing.piece_shape(piece))
        assert tiles == len(sharing.tiles[rank])
    assert bool((seen == 1).all())


@given(shape=SHAPES, ranks=st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_only_rows_between_an_edge_and_a_tile_travel(shape: list[int], ranks: int) -> None:
    sharing = Sharing(shape, ranks)
    starts = [held.rows.start if sharing.tensor.is_matrix else held.columns.start for held in sharing.held if held]
    cut = {start // TILE_EDGE for start in starts if start % TILE_EDGE}
    travelling = [
        part.rows if sharing.tensor.is_matrix else part.columns
        for source in range(ranks)
        for target in range(ranks)
        if source != target
        for _, part in sharing.travels(source, target)
    ]
    assert bool(travelling) == sharing.rows_travel
    assert {position // TILE_EDGE for part in travelling for position in part} <= cut


@given(multiple=st.integers(1, 4), columns=st.integers(1, 200), ranks=st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_nothing_travels_where_all_shards_are_whole_tiles(multiple: int, columns: int, ranks: int) -> None:
    assert not Sharing((TILE_EDGE * multiple * ranks, columns), ranks).rows_travel


@given(rows=st.integers(1, 600), columns=st.integers(1, 600), ranks=st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_a_rank_owns_the_tiles_of_its_rows_and_at_most_a_row_of_tiles_more(rows: int, columns: int, ranks: int) -> None:
    sharing = Sharing((rows, columns), ranks)
    across = sharing.tensor.tile_columns
    for held, owned in zip(sharing.held, sharing.tiles, strict=True):
        assert len(owned) <= len(held.rows) / TILE_EDGE * across + across + 1
