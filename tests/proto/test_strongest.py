"""With update_topk an update keeps the strongest merged votes of each tile, and favours no place among equals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small import random_votes, shapes_contract
from thinwire_proto.contract import WEIGHT_SUM_MAX, parse_run
from thinwire_proto.errors import ConfigError, PayloadError
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout
from thinwire_proto.exact.topk import Strongest, check_kept, left_out
from thinwire_proto.exact.votes import Merged, Merger, Votes, merge

LAYOUT = TileLayout(shapes_contract().parameters)


def tiles_of(merged: Merged) -> dict[int, dict[int, int]]:
    """|V| by component, by tile."""
    found: dict[int, dict[int, int]] = {tile: {} for tile in range(LAYOUT.tiles)}
    tiles = LAYOUT.tile_of(merged.components)
    for tile, component, value in zip(tiles.tolist(), merged.components.tolist(), merged.values.tolist(), strict=True):
        found[tile][component] = abs(value)
    return found


def mask(tiles: np.ndarray, places: np.ndarray) -> np.ndarray:
    found = np.zeros(tiles.size, int)
    found[places] = 1
    return found.reshape(tiles.shape)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.sampled_from([1, 7, 64, 300]),
    st.sampled_from([1, 2, 20, 63, 64, 150, 4096]),
    st.integers(0, 1 << 31),
)
@settings(max_examples=60, deadline=None)
def test_exactly_the_strongest_of_each_tile_are_kept(weights: list[int], k: int, update_topk: int, step: int) -> None:
    votes = [(random_votes(LAYOUT, k, seed), weight) for seed, weight in enumerate(weights)]
    whole = merge(votes, LAYOUT.components)
    kept = merge(votes, LAYOUT.components, Strongest(LAYOUT, update_topk, step))
    value_of = dict(zip(whole.components.tolist(), whole.values.tolist(), strict=True))
    assert [value_of[place] for place in kept.components.tolist()] == kept.values.tolist()
    assert (np.diff(kept.components) > 0).all()
    ours, everything = tiles_of(kept), tiles_of(whole)
    for tile in range(LAYOUT.tiles):
        strongest = sorted(everything[tile].values(), reverse=True)[:update_topk]
        assert sorted(ours[tile].values(), reverse=True) == strongest
    check_kept(kept, LAYOUT, update_topk)
    again = merge(reversed(votes), LAYOUT.components, Strongest(LAYOUT, update_topk, step))
    assert np.array_equal(again.components, kept.components)


def test_the_largest_vote_that_there_can_be_is_kept() -> None:
    merger = Merger(LAYOUT.components, Strongest(LAYOUT, 1, 0))
    merger.add(Votes(np.array([5]), np.array([False])), WEIGHT_SUM_MAX - 1)
    merger.add(Votes(np.array([4095]), np.array([True])), 1)
    found = merger.merged()
    assert (found.components.tolist(), found.values.tolist()) == ([5], [1 - WEIGHT_SUM_MAX])


def test_equals_are_kept_by_no_place_but_by_chance() -> None:
    """Over many steps each place of a tile of equals is kept equally often, whatever the tile, and so is each pair."""
    update_topk, steps = 512, 400
    tiles = np.ones((3, MATRIX_COMPONENTS), np.int16)
    counts = np.zeros((3, MATRIX_COMPONENTS))
    low_half, together = [], 0
    for step in range(steps):
        kept = mask(tiles, Strongest(LAYOUT, update_topk, step).of(tiles.reshape(-1), MATRIX_COMPONENTS, 7))
        assert (kept.sum(1) == update_topk).all()
        assert (kept[0] != kept[1]).any()
        counts += kept
        low_half.append(kept[:, : MATRIX_COMPONENTS // 2].sum(1) / update_topk)
        together += int((kept[:, :-1] & kept[:, 1:]).sum())
    share = update_topk / MATRIX_COMPONENTS
    deviation = np.sqrt(steps * share * (1 - share))
    z = (counts - steps * share) / deviation
    assert np.abs(z).max() < 6
    assert 0.9 < z.std() < 1.1
    assert abs(np.mean(low_half) - 0.5) < 0.005
    pairs = 3 * steps * (MATRIX_COMPONENTS - 1) * share**2
    assert abs(together / pairs - 1) < 0.02
    equals = np.ones((1, 64), np.int16)
    vectors = sum(mask(equals, Strongest(LAYOUT, 8, step).of(equals[0], 64, 9)) for step in range(1600))
    assert np.abs((vectors - 200) / np.sqrt(1600 * (1 / 8) * (7 / 8))).max() < 5


def test_an_update_that_holds_more_is_malformed() -> None:
    four = Merged(np.array([1, 2, 3, 4]), np.ones(4, np.int16))
    check_kept(four, LAYOUT, 4)
    check_kept(four, LAYOUT, 0)
    with pytest.raises(PayloadError, match="tile 0 of the update has 4 components; update_topk allows 3"):
        check_kept(four, LAYOUT, 3)


def test_what_is_missing_in_a_full_tile_is_left_out_and_elsewhere_has_cancelled() -> None:
    tile = MATRIX_COMPONENTS
    merged = Merged(np.array([1, 3, tile + 2]), np.ones(3, np.int16))
    ours = np.array([1, 2, 9, tile + 1, tile + 2, 2 * tile])
    assert left_out(ours, merged, LAYOUT, 2).tolist() == [False, True, True, False, False, False]
    assert not left_out(ours, merged, LAYOUT, 3).any()
    assert not left_out(ours, merged, LAYOUT, 0).any()
    last = np.array([LAYOUT.components - 1])  # a vector tile is full with what it has
    whole = Merged(np.arange(LAYOUT.components - 64, LAYOUT.components - 1), np.ones(63, np.int16))
    assert left_out(last, whole, LAYOUT, 63).tolist() == [True]
    assert left_out(last, whole, LAYOUT, 64).tolist() == [False]


def test_magnitudes_and_update_topk_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match='update_topk must be 0 with magnitude = "tile"'):
        parse_run({"demo": {"update_topk": 8, "magnitude": "tile"}}, "RUN.toml")
