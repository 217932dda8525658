"""Votes on each component of some tiles: the same votes as in a list of components, in less memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small import random_sized_votes, shapes_contract
from thinwire_coordinator.star.trust.ballots import Secret
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout
from thinwire_proto.exact.votes import Levels, Merged, Votes, WholeVotes, tile_ranges
from thinwire_proto.wire.codec import contribution_bytes_max, decode_votes, encode_votes
from thinwire_proto.wire.packing import pack_array, unpack_array

LAYOUT = TileLayout(shapes_contract().parameters)
ALL = MATRIX_COMPONENTS


def whole_votes(seed: int, absent: float = 0.2) -> WholeVotes:
    """Votes on all components of each tile, of which about a share of `absent` have none."""
    rng = np.random.default_rng(seed)
    signs = np.where(rng.random(LAYOUT.components) < 0.5, -1, 1).astype(np.int8)
    voted = rng.random(LAYOUT.tiles) >= absent
    for part, tile, size in tile_ranges(LAYOUT):
        tiles = signs[part].reshape(-1, size)
        tiles[~voted[tile : tile + len(tiles)]] = 0
    return WholeVotes(signs, rng.integers(80, 100, np.count_nonzero(voted)).astype(np.uint8))


def listed(votes: Votes) -> Votes:
    """The same votes as a list of components."""
    return Votes(votes.components, votes.positive, votes.codes)


@pytest.mark.parametrize("levels", [0, 3])
def test_both_forms_merge_to_the_same_bits(levels: int) -> None:
    contract = shapes_contract(demo={"magnitude": "tile", "update_levels": levels})
    contributions: list[tuple[Votes, int]] = [(whole_votes(seed), seed + 1) for seed in range(4)]
    contributions.append((random_sized_votes(LAYOUT, 300, 9), 2))
    found = []
    for form in (lambda votes: votes, listed):
        merger = merger_of(contract, LAYOUT, 0)
        for votes, weight in contributions:
            merger.add(form(votes), weight)
        found.append(merger.merged())
    one, other = found
    assert np.array_equal(one.values, other.values)
    assert one.scales is not None
    assert other.scales is not None
    assert one.scales.tobytes() == other.scales.tobytes()
    if levels:
        assert isinstance(one, Levels)
    else:
        assert isinstance(one, Merged)
        assert isinstance(other, Merged)
        assert np.array_equal(one.components, other.components)


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_the_same_votes_are_compared(share: float) -> None:
    votes, secret = whole_votes(2), Secret(5)
    for one, other in zip(secret.sampled(votes, share), secret.sampled(listed(votes), share), strict=True):
        assert np.array_equal(one, other)


@given(st.integers(0, 2**31), st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=30, deadline=None)
def test_whole_tiles_round_trip(seed: int, absent: float) -> None:
    votes = whole_votes(seed, absent)
    data = encode_votes(votes, LAYOUT)
    again = decode_votes(data, LAYOUT, ALL, "tile", whole=True)
    assert isinstance(again, WholeVotes)
    assert np.array_equal(again.signs, votes.signs)
    assert votes.codes is not None
    assert again.codes is not None
    assert np.array_equal(again.codes, votes.codes)
    assert len(again) == len(votes) == np.count_nonzero(votes.signs)
    assert len(data) <= contribution_bytes_max(LAYOUT, ALL, "tile")


def test_a_body_that_was_written_once_is_read() -> None:
    components = np.arange(ALL)
    signs = ("499224" * 171)[: 2 * ALL // 8]
    data = bytes.fromhex("970202cd1000c4020100c400c50200" + signs + "c40a28b52ffd20010900005a")
    votes = decode_votes(data, LAYOUT, ALL, "tile", whole=True)
    assert isinstance(votes, WholeVotes)
    assert votes.components.tolist() == components.tolist()
    assert votes.positive.tolist() == [component % 3 == 0 for component in components.tolist()]
    assert votes.codes is not None
    assert votes.codes.tolist() == [90]


def test_malformed_tiles_are_refused() -> None:
    fields = unpack_array(encode_votes(whole_votes(1), LAYOUT), "contribution", 2)

    def refuses(match: str, **changed: object) -> None:
        names = ("form", "count", "head", "body", "signs", "codes")
        data = pack_array([2, *(changed.get(name, field) for name, field in zip(names, fields, strict=True))])
        with pytest.raises(PayloadError, match=match):
            decode_votes(data, LAYOUT, ALL, "tile", whole=True)

    refuses("the payload announces", count=fields[1] - 1)
    refuses("the payload announces", head=b"\0" * len(fields[2]))
    refuses("the payload announces", body=b"x")
    refuses("signs need", signs=fields[4][:-1])
    refuses("signs need", head=fields[2] + b"\0")
    refuses("codes of tiles need", codes=bytes.fromhex("28b52ffd2000010000"))
