"""Component numbers round-trip in either form, the encoder picks the smaller form, and the size is close to the
entropy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from thinwire_proto.contract import Parameter
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.votes import Components, Votes
from thinwire_proto.wire.codec import encode_votes
from thinwire_proto.wire.component_codec import MATRIX_RANKED_MAX, RANKS, decode_components, encode_components
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


def test_lowest_and_highest_rank_round_trip() -> None:
    """The bounds of a rank, 0 and the largest, in matrices and vectors."""
    for each in range(1, MATRIX_RANKED_MAX + 1):
        first, last = np.arange(each), FULL - each + np.arange(each)
        for inside, in_vector in ((first, first), (last, 64 - each + first)):
            vector = LAYOUT.matrix_components + in_vector
            components = np.concatenate([inside, FULL + inside, vector]).astype(np.int64)
            assert np.array_equal(decode(encode_components(components, LAYOUT)), components), each


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
