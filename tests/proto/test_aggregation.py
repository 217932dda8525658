"""The merge of a round: the same integers as plain Python loops find, in any order."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small import random_sized_votes, random_votes, shapes_contract
from thinwire_proto.contract import WEIGHT_SUM_MAX, Contract, Parameter
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.magnitudes import SCALE_MIN, TABLE, UNIT, gain
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout
from thinwire_proto.exact.votes import CHUNK, Merged, Votes

Weighed = list[tuple[Votes, int]]


def merged_by(contract: Contract, contributions: Weighed, layout: TileLayout | None = None) -> Merged:
    merger = merger_of(contract, layout or LAYOUT, 0)
    for votes, weight in contributions:
        merger.add(votes, weight)
    merged = merger.merged()
    assert isinstance(merged, Merged)
    return merged


def reference(contributions: Weighed) -> dict[int, int]:
    """One vote after the other. Components whose votes cancel are left out."""
    total: dict[int, int] = {}
    for votes, weight in contributions:
        for component, positive in zip(votes.components.tolist(), votes.positive.tolist(), strict=True):
            total[component] = total.get(component, 0) + (weight if positive else -weight)
    return {component: value for component, value in total.items() if value}


LAYOUT = TileLayout(shapes_contract().parameters)


@given(weights=st.lists(st.integers(1, 20), min_size=1, max_size=6), k=st.sampled_from([8, 300]))
@settings(max_examples=12, deadline=None)
def test_a_merge_gives_what_plain_loops_give(weights: list[int], k: int) -> None:
    contributions = [(random_votes(LAYOUT, k, seed), weight) for seed, weight in enumerate(weights)]
    merged = merged_by(shapes_contract(demo={"update_topk": 0}), contributions)
    expected = reference(contributions)
    assert dict(zip(merged.components.tolist(), merged.values.tolist(), strict=True)) == expected
    assert (np.diff(merged.components) > 0).all()
    assert merged.values.dtype == np.int16


@given(weights=st.lists(st.integers(1, 4000), min_size=2, max_size=6), random=st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_any_order_gives_the_same(weights: list[int], random: Random) -> None:
    contributions = [(random_votes(LAYOUT, 64, seed), weight) for seed, weight in enumerate(weights)]
    expected = merged_by(shapes_contract(), contributions)
    random.shuffle(contributions)
    found = merged_by(shapes_contract(), contributions)
    assert np.array_equal(found.components, expected.components)
    assert np.array_equal(found.values, expected.values)


def test_weights_up_to_the_bound_do_not_overflow() -> None:
    some, others = Votes(np.array([0, 5]), np.array([True, False])), Votes(np.array([0, 7]), np.array([True, True]))
    merger = merger_of(shapes_contract(), LAYOUT, 0)
    merger.add(some, WEIGHT_SUM_MAX - 1)
    merger.add(others, 1)
    with pytest.raises(ValueError, match="32767"):
        merger.add(some, 1)
    merged = merger.merged()
    assert isinstance(merged, Merged)
    assert merged.values[0] == WEIGHT_SUM_MAX
    assert merged.components[0] == 0
    with pytest.raises(ValueError, match="1 or more"):
        merger.add(some, 0)


LONG = TileLayout([Parameter(name="m", shape=(64 * 11, 64 * 13)), Parameter(name="v", shape=(64 * 5000,))])


@pytest.mark.parametrize("update_topk", [0, MATRIX_COMPONENTS])
def test_chunks_do_not_change_the_result(update_topk: int) -> None:
    assert LONG.matrix_components > 2 * CHUNK
    contributions = [(random_votes(LONG, 300, seed), seed + 1) for seed in range(4)]
    merged = merged_by(shapes_contract(demo={"update_topk": update_topk}), contributions, LONG)
    assert dict(zip(merged.components.tolist(), merged.values.tolist(), strict=True)) == reference(contributions)


# with magnitudes


def sized_reference(contributions: Weighed) -> tuple[dict[int, int], dict[int, int]]:
    """Returns V' by component, and by tile the median size times the largest |V|. Where less than half of the weight
    has votes, the median size is at most the largest of the other tiles."""
    votes_of = reference(contributions)
    units: dict[int, list[int]] = {}
    for votes, weight in contributions:
        assert votes.codes is not None
        for tile, code in zip(
            sorted(set(LAYOUT.tile_of(votes.components).tolist())), votes.codes.tolist(), strict=True
        ):
            units.setdefault(tile, []).extend([code] * weight)
    largest: dict[int, int] = {}
    tile_of = {component: int(LAYOUT.tile_of(np.array([component]))[0]) for component in votes_of}
    for component, value in votes_of.items():
        largest[tile_of[component]] = max(largest.get(tile_of[component], 0), abs(value))
    scaled = {}
    for component, value in votes_of.items():
        most = largest[tile_of[component]]
        if size := (254 * abs(value) + most) // (2 * most):
            scaled[component] = size if value > 0 else -size
    median = {tile: int(TABLE[sorted(codes)[(len(codes) - 1) // 2]]) for tile, codes in units.items()}
    total = sum(weight for _, weight in contributions)
    trusted = max(size for tile, size in median.items() if 2 * len(units[tile]) >= total)
    few = {tile for tile in median if 2 * len(units[tile]) < total}
    sizes = {tile: most * min(median[tile], trusted if tile in few else 1 << 40) for tile, most in largest.items()}
    return scaled, sizes


@given(weights=st.lists(st.integers(1, 9), min_size=1, max_size=5), random=st.randoms(use_true_random=False))
@settings(max_examples=8, deadline=None)
def test_with_magnitudes_a_tile_has_the_median_size(weights: list[int], random: Random) -> None:
    contract = shapes_contract(demo={"magnitude": "tile"})
    contributions = [(random_sized_votes(LAYOUT, 16, seed), weight) for seed, weight in enumerate(weights)]
    merged = merged_by(contract, contributions)
    expected, sizes = sized_reference(contributions)
    assert dict(zip(merged.components.tolist(), merged.values.tolist(), strict=True)) == dict(sorted(expected.items()))
    assert merged.scales is not None
    for tile, scale in zip(sorted(sizes), merged.scales.tolist(), strict=True):
        unit = UNIT / (127 * sum(weights)) / gain(is_matrix=tile < LAYOUT.matrix_tiles)
        assert scale == pytest.approx(max(SCALE_MIN, min(1.0, sizes[tile] * unit)), rel=2**-8)
    random.shuffle(contributions)
    again = merged_by(contract, contributions)
    assert again.scales is not None
    assert np.array_equal(again.values, merged.values)
    assert again.scales.tobytes() == merged.scales.tobytes()


def everywhere(code: int, tiles: int | None = None, *, positive: bool = True) -> Votes:
    """A vote for the first component of each tile, or of the first `tiles`, all with the same code."""
    matrices = np.arange(LAYOUT.matrix_tiles) * MATRIX_COMPONENTS
    vectors = LAYOUT.matrix_components + np.arange(LAYOUT.tiles - LAYOUT.matrix_tiles) * 64
    components = np.concatenate([matrices, vectors])[:tiles]
    return Votes(components, np.full(len(components), positive), np.full(len(components), code, np.uint8))


def moved(contributions: Weighed, **sections: Any) -> dict[int, float]:
    """The step of each component: its V' times its tile's scale."""
    merged = merged_by(shapes_contract(demo={"magnitude": "tile"}, **sections), contributions)
    _, counts = np.unique(LAYOUT.tile_of(merged.components), return_counts=True)
    assert merged.scales is not None
    steps = merged.values * np.repeat(merged.scales, counts)
    return dict(zip(merged.components.tolist(), steps.tolist(), strict=True))


def test_one_node_of_four_moves_a_tile_by_its_share_whatever_codes_it_sends() -> None:
    honest: Weighed = [(everywhere(code), 8) for code in (98, 100, 102)]
    for sign in (True, False):
        quiet = moved([*honest, (everywhere(102, positive=sign), 8)])
        assert moved([*honest, (everywhere(255, positive=sign), 8)]) == quiet
    alone, three = moved([(everywhere(102), 8)] * 4), moved(honest)
    against = moved([*honest, (everywhere(255, positive=False), 8)])
    for component, whole in alone.items():
        # three for it and one against make half of the step that four would make, of one of the honest sizes
        assert abs(against[component]) <= 0.5 * whole * (1 + 2**-7)
        assert 0 < against[component] < three[component]


def test_where_few_vote_no_size_is_larger_than_the_largest_that_a_majority_sent() -> None:
    """One node of four votes in all tiles with the largest code; the others have votes in the first three tiles."""
    honest: Weighed = [(everywhere(code, 3), 8) for code in (96, 104, 112)]
    loud, same = (moved([*honest, (everywhere(code), 8)]) for code in (255, 112))
    assert loud == same
    alone = LAYOUT.tiles - 1
    assert alone > 3
    last = max(loud)
    assert 0 < loud[last] <= 0.25 * TABLE[112] * UNIT / gain(is_matrix=False) / 127 * 127 * (1 + 2**-7)
    quiet = moved([*honest, (everywhere(40), 8)])
    assert quiet[last] < loud[last] / 100  # smaller sizes stay as they are


def test_without_a_majority_anywhere_nothing_steps() -> None:
    contributions: Weighed = []
    for node in range(3):
        tile = node * MATRIX_COMPONENTS
        contributions.append((Votes(np.array([tile]), np.array([True]), np.array([255], np.uint8)), 8))
    assert moved(contributions) == {}
    assert len(moved(contributions[:2])) == 2  # half of the weight is enough: two nodes can work on different tiles
