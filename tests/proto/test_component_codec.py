"""Which components are meant: they come back from either form, the form is the smaller one, and costs next to no more
than the floor."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire_proto.contract import Parameter
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.votes import Components, Votes
from thinwire_proto.wire import component_codec
from thinwire_proto.wire.codec import encode_votes
from thinwire_proto.wire.component_codec import (
    GAPS,
    MATRIX_PLACES_MAX,
    PLACES,
    decode_components,
    encode_components,
    encoded_max,
)
from thinwire_proto.wire.packing import compress

LAYOUT = TileLayout([Parameter(name="m", shape=(128, 192)), Parameter(name="v", shape=(300,))])
FULL = 4096


def chosen(layout: TileLayout, counts: list[int], seed: int) -> Components:
    """So many components in each tile, or what the tile has."""
    rng = np.random.default_rng(seed)
    parts = [np.zeros(0, np.int64)]
    for tile, count in enumerate(counts):
        is_matrix = tile < layout.matrix_tiles
        size = 4096 if is_matrix else 64
        first = tile * size if is_matrix else layout.matrix_components + (tile - layout.matrix_tiles) * size
        parts.append(first + np.sort(rng.permutation(size)[: min(count, size)]))
    return np.concatenate(parts)


def decode(fields: list[int | bytes], layout: TileLayout = LAYOUT, per_tile: int = FULL) -> Components:
    form, count, head, body = fields
    assert isinstance(form, int)
    assert isinstance(count, int)
    assert isinstance(head, bytes)
    assert isinstance(body, bytes)
    return decode_components(form, count, head, body, layout, per_tile, layout.components)[0]


@given(st.lists(st.integers(0, 22), min_size=LAYOUT.tiles, max_size=LAYOUT.tiles), st.integers(0, 2**31))
@settings(max_examples=200, deadline=None)
def test_any_number_in_each_tile_comes_back(counts: list[int], seed: int) -> None:
    components = chosen(LAYOUT, counts, seed)
    fields = encode_components(components, LAYOUT)
    assert np.array_equal(decode(fields), components)
    assert sum(len(field) for field in fields if isinstance(field, bytes)) <= encoded_max(len(components), LAYOUT)


@pytest.mark.parametrize("each", range(1, MATRIX_PLACES_MAX + 1))
def test_the_first_and_the_last_tile_of_all_come_back(each: int) -> None:
    """The bounds of the numbers: 0, and the largest that there is, in matrices and vectors."""
    first, last = np.arange(each), FULL - each + np.arange(each)
    for inside, in_vector in ((first, first), (last, 64 - each + first)):
        vector = LAYOUT.matrix_components + in_vector
        components = np.concatenate([inside, FULL + inside, vector]).astype(np.int64)
        fields = encode_components(components, LAYOUT)
        assert np.array_equal(decode(fields), components)


@pytest.mark.parametrize("each", [1, 31, 32, 63, 64])
def test_a_vector_of_any_number_has_a_place(each: int) -> None:
    layout = TileLayout([Parameter(name="v", shape=(6400,))])
    components = chosen(layout, [each] * layout.tiles, each)
    fields = encode_components(components, layout)
    assert fields[0] == PLACES
    assert np.array_equal(decode(fields, layout), components)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 8, 12, 16, 20, 24, 32, 64, 128])
def test_a_vote_costs_no_more_than_the_floor_and_three_in_a_hundred(k: int) -> None:
    """Uniform components are the worst case; the floor is log2 C(4096, k)/k bits and one for the sign. 10M parameters,
    and all of the payload."""
    layout = TileLayout([Parameter(name="m", shape=(2560, 4096))])
    votes = Votes(chosen(layout, [k] * layout.tiles, k), np.random.default_rng(k).random(k * layout.tiles) < 0.5)
    floor = (math.lgamma(4097) - math.lgamma(k + 1) - math.lgamma(4097 - k)) / math.log(2) / k + 1
    assert 8 * len(encode_votes(votes, layout)) / len(votes) < 1.03 * floor


def test_components_that_lie_close_together_go_as_gaps() -> None:
    """Few to a tile, but always the same ones: what zstandard makes of that is far below the floor."""
    layout = TileLayout([Parameter(name="m", shape=(640, 640))])
    places = [tile * 4096 + np.arange(8) for tile in range(layout.tiles)]
    form, _, head, _ = encode_components(np.concatenate(places), layout)
    assert form == GAPS
    assert isinstance(head, bytes)
    assert len(head) < 200


def test_what_has_no_place_is_refused() -> None:
    components = chosen(LAYOUT, [6] * LAYOUT.tiles, 1)
    form, count, head, body = encode_components(components, LAYOUT)
    assert form == PLACES
    assert isinstance(count, int)
    assert isinstance(head, bytes)
    assert isinstance(body, bytes)
    wrong: list[tuple[list[int | bytes], str]] = [
        ([PLACES, count, head, body[:-1]], "there are"),
        ([PLACES, count, head, body + b"\0"], "there are"),
        ([PLACES, count + 1, head, body], "the payload announces"),
        ([PLACES, 21, compress(bytes([21]).ljust(LAYOUT.tiles, b"\0")), b""], "more than 20 components has no number"),
        ([PLACES, count, head, b"\xff" * 7 + body[7:]], "no tile with a number so high"),
        ([PLACES, count, compress(b"\x03"), body], "counts of components"),
    ]
    for fields, said in wrong:
        with pytest.raises(PayloadError, match=said):
            decode(fields)
    with pytest.raises(PayloadError, match="tile 0 has 6 votes; k allows 5"):
        decode([PLACES, count, head, body], per_tile=5)


def test_the_lower_bits_must_ascend_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two components with the same upper bits: their lower ones could be written in the wrong order, or twice."""
    monkeypatch.setattr(component_codec, "GAP_TABLE_BITS", 1000)  # two components alone would go as gaps
    layout = TileLayout([Parameter(name="m", shape=(64, 64))])
    form, count, head, body = encode_components(np.array([5, 9]), layout)
    assert form == PLACES
    assert isinstance(body, bytes)
    five_nine, upper = bytes([5 << 2, 9 << 4]), body[:-2]
    assert body == upper + five_nine
    for lower in (bytes([9 << 2, 5 << 4]), bytes([9 << 2, 9 << 4])):
        with pytest.raises(PayloadError, match="do not ascend"):
            decode([PLACES, count, head, upper + lower], layout)
