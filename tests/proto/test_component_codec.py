"""Component numbers round-trip in either form, the encoder picks the smaller form, and the size is close to the
entropy."""

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
    MATRIX_RANKED_MAX,
    RANKS,
    decode_components,
    encode_components,
    encoded_max,
)
from thinwire_proto.wire.packing import compress

LAYOUT = TileLayout([Parameter(name="m", shape=(128, 192)), Parameter(name="v", shape=(300,))])
FULL = 4096


def random_components(layout: TileLayout, counts: list[int], seed: int) -> Components:
    """Random components: `counts[i]` in tile i, or as many as the tile has."""
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
def test_any_counts_round_trip(counts: list[int], seed: int) -> None:
    components = random_components(LAYOUT, counts, seed)
    fields = encode_components(components, LAYOUT)
    assert np.array_equal(decode(fields), components)
    assert sum(len(field) for field in fields if isinstance(field, bytes)) <= encoded_max(len(components), LAYOUT)


@pytest.mark.parametrize("each", range(1, MATRIX_RANKED_MAX + 1))
def test_lowest_and_highest_rank_round_trip(each: int) -> None:
    """The bounds of a rank, 0 and the largest, in matrices and vectors."""
    first, last = np.arange(each), FULL - each + np.arange(each)
    for inside, in_vector in ((first, first), (last, 64 - each + first)):
        vector = LAYOUT.matrix_components + in_vector
        components = np.concatenate([inside, FULL + inside, vector]).astype(np.int64)
        fields = encode_components(components, LAYOUT)
        assert np.array_equal(decode(fields), components)


@pytest.mark.parametrize("each", [1, 31, 32, 63, 64])
def test_vector_tile_with_any_count_has_a_rank(each: int) -> None:
    layout = TileLayout([Parameter(name="v", shape=(6400,))])
    components = random_components(layout, [each] * layout.tiles, each)
    fields = encode_components(components, layout)
    assert fields[0] == RANKS
    assert np.array_equal(decode(fields, layout), components)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 8, 12, 16, 20, 24, 32, 64, 128])
def test_a_vote_costs_at_most_three_percent_more_than_the_entropy(k: int) -> None:
    """Uniform components are the worst case. The entropy is log2 C(4096, k)/k bits, and one bit for the sign.

    Measured on the whole payload of 10M parameters.
    """
    layout = TileLayout([Parameter(name="m", shape=(2560, 4096))])
    votes = Votes(
        random_components(layout, [k] * layout.tiles, k), np.random.default_rng(k).random(k * layout.tiles) < 0.5
    )
    entropy = (math.lgamma(4097) - math.lgamma(k + 1) - math.lgamma(4097 - k)) / math.log(2) / k + 1
    assert 8 * len(encode_votes(votes, layout)) / len(votes) < 1.03 * entropy


def test_adjacent_components_are_encoded_as_gaps() -> None:
    """Few components a tile, but always the same ones: zstandard compresses the gaps far below the entropy of a uniform
    choice."""
    layout = TileLayout([Parameter(name="m", shape=(640, 640))])
    components = [tile * 4096 + np.arange(8) for tile in range(layout.tiles)]
    form, _, head, _ = encode_components(np.concatenate(components), layout)
    assert form == GAPS
    assert isinstance(head, bytes)
    assert len(head) < 200


def test_invalid_ranks_are_refused() -> None:
    components = random_components(LAYOUT, [6] * LAYOUT.tiles, 1)
    form, count, head, body = encode_components(components, LAYOUT)
    assert form == RANKS
    assert isinstance(count, int)
    assert isinstance(head, bytes)
    assert isinstance(body, bytes)
    wrong: list[tuple[list[int | bytes], str]] = [
        ([RANKS, count, head, body[:-1]], "there are"),
        ([RANKS, count, head, body + b"\0"], "there are"),
        ([RANKS, count + 1, head, body], "the payload announces"),
        ([RANKS, 21, compress(bytes([21]).ljust(LAYOUT.tiles, b"\0")), b""], "more than 20 components has no rank"),
        ([RANKS, count, head, b"\xff" * 7 + body[7:]], "the rank of a tile is too high"),
        ([RANKS, count, compress(b"\x03"), body], "counts of components"),
    ]
    for fields, expected in wrong:
        with pytest.raises(PayloadError, match=expected):
            decode(fields)
    with pytest.raises(PayloadError, match="tile 0 has 6 votes; k allows 5"):
        decode([RANKS, count, head, body], per_tile=5)


def test_lower_bits_must_ascend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two components with the same upper bits could have lower bits in the wrong order, or equal ones."""
    monkeypatch.setattr(component_codec, "GAP_TABLE_BITS", 1000)  # otherwise two components alone are encoded as gaps
    layout = TileLayout([Parameter(name="m", shape=(64, 64))])
    form, count, head, body = encode_components(np.array([5, 9]), layout)
    assert form == RANKS
    assert isinstance(body, bytes)
    five_nine, upper = bytes([5 << 2, 9 << 4]), body[:-2]
    assert body == upper + five_nine
    for lower in (bytes([9 << 2, 5 << 4]), bytes([9 << 2, 9 << 4])):
        with pytest.raises(PayloadError, match="not in ascending order"):
            decode([RANKS, count, head, upper + lower], layout)
