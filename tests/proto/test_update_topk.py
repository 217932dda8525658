"""With update_topk, an update contains the strongest merged votes of each tile, and ties favour no position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small import random_votes, shapes_contract
from thinwire_proto.contract import WEIGHT_SUM_MAX
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.magnitudes import tiles_with
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout
from thinwire_proto.exact.topk import TopkSelection, check_update_topk, dropped_by_update
from thinwire_proto.exact.votes import Merged, Merger, Votes, merge

LAYOUT = TileLayout(shapes_contract().parameters)


def tiles_of(merged: Merged) -> dict[int, dict[int, int]]:
    """|V| by component, by tile."""
    found: dict[int, dict[int, int]] = {tile: {} for tile in range(LAYOUT.tiles)}
    tiles = LAYOUT.tile_of(merged.components)
    for tile, component, value in zip(tiles.tolist(), merged.components.tolist(), merged.values.tolist(), strict=True):
        found[tile][component] = abs(value)
    return found


def mask(tiles: np.ndarray, positions: np.ndarray) -> np.ndarray:
    found = np.zeros(tiles.size, int)
    found[positions] = 1
    return found.reshape(tiles.shape)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.sampled_from([1, 7, 64, 300]),
    st.sampled_from([1, 2, 20, 63, 64, 150, 4096]),
    st.integers(0, 1 << 31),
)
@settings(max_examples=60, deadline=None)
def test_the_strongest_of_each_tile_are_selected(weights: list[int], k: int, update_topk: int, step: int) -> None:
    votes = [(random_votes(LAYOUT, k, seed), weight) for seed, weight in enumerate(weights)]
    whole = merge(votes, LAYOUT.components)
    selected = merge(votes, LAYOUT.components, TopkSelection(LAYOUT, update_topk, step))
    value_of = dict(zip(whole.components.tolist(), whole.values.tolist(), strict=True))
    assert [value_of[component] for component in selected.components.tolist()] == selected.values.tolist()
    assert (np.diff(selected.components) > 0).all()
    ours, everything = tiles_of(selected), tiles_of(whole)
    for tile in range(LAYOUT.tiles):
        strongest = sorted(everything[tile].values(), reverse=True)[:update_topk]
        assert sorted(ours[tile].values(), reverse=True) == strongest
    check_update_topk(selected, LAYOUT, update_topk)
    again = merge(reversed(votes), LAYOUT.components, TopkSelection(LAYOUT, update_topk, step))
    assert np.array_equal(again.components, selected.components)


def test_the_largest_possible_vote_is_selected() -> None:
    merger = Merger(LAYOUT.components, TopkSelection(LAYOUT, 1, 0))
    merger.add(Votes(np.array([5]), np.array([False])), WEIGHT_SUM_MAX - 1)
    merger.add(Votes(np.array([4095]), np.array([True])), 1)
    found = merger.merged()
    assert (found.components.tolist(), found.values.tolist()) == ([5], [1 - WEIGHT_SUM_MAX])


def test_ties_are_broken_uniformly_at_random() -> None:
    """Over many steps, each position of a tile of equal votes is selected equally often, in every tile, and so is each
    pair."""
    update_topk, steps = 512, 400
    tiles = np.ones((3, MATRIX_COMPONENTS), np.int16)
    counts = np.zeros((3, MATRIX_COMPONENTS))
    low_half, together = [], 0
    for step in range(steps):
        selected = mask(
            tiles, TopkSelection(LAYOUT, update_topk, step).positions(tiles.reshape(-1), MATRIX_COMPONENTS, 7)
        )
        assert (selected.sum(1) == update_topk).all()
        assert (selected[0] != selected[1]).any()
        counts += selected
        low_half.append(selected[:, : MATRIX_COMPONENTS // 2].sum(1) / update_topk)
        together += int((selected[:, :-1] & selected[:, 1:]).sum())
    share = update_topk / MATRIX_COMPONENTS
    deviation = np.sqrt(steps * share * (1 - share))
    z = (counts - steps * share) / deviation
    assert np.abs(z).max() < 6
    assert 0.9 < z.std() < 1.1
    assert abs(np.mean(low_half) - 0.5) < 0.005
    pairs = 3 * steps * (MATRIX_COMPONENTS - 1) * share**2
    assert abs(together / pairs - 1) < 0.02
    equals = np.ones((1, 64), np.int16)
    vectors = sum(mask(equals, TopkSelection(LAYOUT, 8, step).positions(equals[0], 64, 9)) for step in range(1600))
    assert np.abs((vectors - 200) / np.sqrt(1600 * (1 / 8) * (7 / 8))).max() < 5


def test_update_with_too_many_components_is_refused() -> None:
    four = Merged(np.array([1, 2, 3, 4]), np.ones(4, np.int16))
    check_update_topk(four, LAYOUT, 4)
    check_update_topk(four, LAYOUT, 0)
    with pytest.raises(PayloadError, match="tile 0 of the update has 4 components; update_topk allows 3"):
        check_update_topk(four, LAYOUT, 3)


def test_missing_component_was_dropped_in_a_full_tile_and_cancelled_elsewhere() -> None:
    tile = MATRIX_COMPONENTS
    merged = Merged(np.array([1, 3, tile + 2]), np.ones(3, np.int16))
    ours = np.array([1, 2, 9, tile + 1, tile + 2, 2 * tile])
    assert dropped_by_update(ours, merged, LAYOUT, 2).tolist() == [False, True, True, False, False, False]
    assert not dropped_by_update(ours, merged, LAYOUT, 3).any()
    assert not dropped_by_update(ours, merged, LAYOUT, 0).any()
    last = np.array([LAYOUT.components - 1])  # a vector tile is full at 64 components
    whole = Merged(np.arange(LAYOUT.components - 64, LAYOUT.components - 1), np.ones(63, np.int16))
    assert dropped_by_update(last, whole, LAYOUT, 63).tolist() == [True]
    assert dropped_by_update(last, whole, LAYOUT, 64).tolist() == [False]


def test_sized_votes_are_chosen_by_their_sum_of_signs() -> None:
    """As votes without a size are, so what a node puts back is the same."""
    demo = {"k": 300, "update_topk": 40}
    sized, plain = (shapes_contract(demo=demo | {"magnitude": magnitude}) for magnitude in ("tile", "clipped"))
    mergers = [merger_of(contract, LAYOUT, 7) for contract in (sized, plain)]
    for seed in range(5):
        votes = random_votes(LAYOUT, 300, seed)
        codes = np.full(len(tiles_with(votes.components, LAYOUT)[0]), 90, np.uint8)
        mergers[0].add(Votes(votes.components, votes.positive, codes), 1)
        mergers[1].add(votes, 1)
    with_sizes, without = (merger.merged() for merger in mergers)
    assert isinstance(with_sizes, Merged)
    assert isinstance(without, Merged)
    assert (with_sizes.components == without.components).all()
    assert (np.sign(with_sizes.values) == np.sign(without.values)).all()
    assert with_sizes.scales is not None
    check_update_topk(with_sizes, LAYOUT, 40)
    with pytest.raises(PayloadError, match="allows 39"):
        check_update_topk(with_sizes, LAYOUT, 39)
