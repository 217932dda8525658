"""Merging gives the same bits in any order and through any tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small import random_votes, shapes_contract
from thinwire_proto.contract import WEIGHT_SUM_MAX
from thinwire_proto.tiles import TileLayout
from thinwire_proto.votes import Merger, Votes, merge

LAYOUT = TileLayout(shapes_contract().parameters)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_any_order_and_any_tree_give_the_same(weights: list[int], random: object) -> None:
    votes = [(random_votes(LAYOUT, 32, seed), weight) for seed, weight in enumerate(weights)]
    expected = merge(votes, LAYOUT.components)
    shuffled = list(votes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    found = merge(shuffled, LAYOUT.components)
    assert np.array_equal(found.components, expected.components)
    assert np.array_equal(found.values, expected.values)

    middle = len(shuffled) // 2
    tree = np.zeros(LAYOUT.components, np.int16)
    for half in (shuffled[:middle], shuffled[middle:]):
        part = merge(half, LAYOUT.components)
        tree[part.components] += part.values
    assert np.array_equal(np.flatnonzero(tree), expected.components)
    assert np.array_equal(tree[expected.components], expected.values)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_it_is_the_sum_of_weights_times_signs(weights: list[int]) -> None:
    total = [0] * LAYOUT.components
    pairs = [(random_votes(LAYOUT, 8, seed), weight) for seed, weight in enumerate(weights)]
    for votes, weight in pairs:
        for component, positive in zip(votes.components.tolist(), votes.positive.tolist(), strict=True):
            total[component] += weight if positive else -weight
    merged = merge(pairs, LAYOUT.components)
    assert merged.components.tolist() == [place for place, value in enumerate(total) if value]
    assert merged.values.tolist() == [value for value in total if value]


def test_weights_reach_the_bound_of_an_int16_and_not_beyond() -> None:
    one = Votes(np.array([0, 5]), np.array([True, False]))
    merger = Merger(10)
    merger.add(one, WEIGHT_SUM_MAX - 1)
    merger.add(one, 1)
    with pytest.raises(ValueError, match="32767"):
        merger.add(one, 1)
    assert merger.merged().values.tolist() == [WEIGHT_SUM_MAX, -WEIGHT_SUM_MAX]
    with pytest.raises(ValueError, match="1 or more"):
        Merger(10).add(one, 0)
