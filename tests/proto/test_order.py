"""The order of samples: each pass has every sample once, alike on all machines, and blocks read one shard."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire_proto.data.order import SAMPLES_MAX, sample_at
from thinwire_proto.data.shard_order import BLOCKS_MIN, Mixtures, ShardOrder

TEN = [7, 6, 9, 2, 8, 0, 1, 5, 4, 3, 5, 6, 8, 4, 3, 9, 0, 2, 1, 7]
MILLION = [986842, 29140, 187597, 838208, 551063]
MOST = [1126039084750912200, 7428550627782120873, 461800214197432314]


@given(st.integers(0, 2**63 - 1), st.integers(1, 300), st.integers(0, 5))
def test_each_pass_has_every_sample_once(seed: int, samples: int, pass_number: int) -> None:
    positions = range(pass_number * samples, (pass_number + 1) * samples)
    assert sorted(sample_at(position, seed, samples) for position in positions) == list(range(samples))


def test_each_pass_and_each_seed_has_its_own_order() -> None:
    starts = ((1, 0), (1, 50), (2, 0))
    assert len({tuple(sample_at(p, seed, 50) for p in range(start, start + 50)) for seed, start in starts}) == 3


def test_the_order_is_the_known_one() -> None:
    """A changed number changes the meaning of the contract: nodes would train on each other's samples."""
    assert [sample_at(place, 1, 10) for place in range(20)] == TEN
    assert [sample_at(place, 2**63 - 1, 1_000_003) for place in (0, 1, 2, 1_000_002, 5_000_015)] == MILLION
    assert [sample_at(place, 7, SAMPLES_MAX) for place in (0, SAMPLES_MAX - 1, SAMPLES_MAX)] == MOST


def test_the_order_needs_no_memory_per_sample() -> None:
    sample_at(0, 5, 1 << 40)
    tracemalloc.start()
    assert len({sample_at(place, 5, 1 << 40) for place in range(0, 1 << 40, 1 << 32)}) == 256
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 16


ONE_SOURCE = [(2, 1), (2, 0), (1, 1), (1, 4), (1, 0), (1, 3), (1, 2), (0, 2), (0, 0), (0, 1)]
MIXED = [(1, 0), (0, 1), (0, 1), (1, 0), (0, 1), (0, 1), (1, 0), (0, 1), (0, 2), (0, 2)]
FAR = [(1, 5, 75501), (0, 28, 7360), (0, 28, 33611)]

SHARDS = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def test_the_order_never_changes() -> None:
    """Nodes of other versions must read the same samples."""
    order = ShardOrder([[3, 5, 2]], 1)
    assert [tuple(order.place(position))[1:] for position in range(10)] == ONE_SOURCE
    mixed = ShardOrder([[3, 5, 2], [4, 4]], 7, [0.7, 0.3])
    assert [tuple(mixed.place(position))[:2] for position in range(10)] == MIXED
    far = ShardOrder([[100_000] * 50, [90_000] * 9], 7, [0.9, 0.1])
    assert [tuple(far.place(10**15 + step)) for step in range(3)] == FAR


@settings(deadline=None, max_examples=40)
@given(st.lists(SHARDS, min_size=1, max_size=4), st.integers(0, 2**63 - 1), st.integers(0, 3))
def test_without_weights_each_pass_has_every_sample_once(samples: list[list[int]], seed: int, number: int) -> None:
    order = ShardOrder(samples, seed)
    total = sum(map(sum, samples))
    found = [tuple(order.place(position)) for position in range(number * total, (number + 1) * total)]
    due = [(s, j, i) for s, shards in enumerate(samples) for j, size in enumerate(shards) for i in range(size)]
    assert sorted(found) == due


@settings(deadline=None, max_examples=40)
@given(st.lists(SHARDS, min_size=2, max_size=4), st.integers(0, 2**63 - 1), st.data())
def test_weights_are_met_exactly_and_each_source_has_its_own_passes(
    samples: list[list[int]], seed: int, data: st.DataObject
) -> None:
    weights = [data.draw(st.sampled_from([0.1, 0.25, 0.5, 1.0, 3.0])) for _ in samples]
    order = ShardOrder(samples, seed, weights)
    places = [order.place(position) for position in range(12 * order.cycle)]
    drawn = Counter(place.source for place in places)
    for source, shards in enumerate(samples):
        assert drawn[source] * sum(weights) == pytest.approx(len(places) * weights[source], abs=1e-6)
        mine = [(place.shard, place.sample) for place in places if place.source == source]
        size = sum(shards)
        for start in range(0, len(mine) - size + 1, size):
            assert len(set(mine[start : start + size])) == size
    for end in range(0, len(places), 7):  # nowhere is the mixture far from its weights
        so_far = Counter(place.source for place in places[:end])
        for source, weight in enumerate(weights):
            assert abs(so_far[source] - end * weight / sum(weights)) <= len(weights)


@settings(deadline=None, max_examples=40)
@given(st.lists(SHARDS, min_size=1, max_size=3), st.integers(0, 2**63 - 1), st.integers(0, 500), st.booleans())
def test_blocks_divide_the_stream_and_read_one_shard_of_the_main_source(
    samples: list[list[int]], seed: int, position: int, weighted: bool
) -> None:
    order = ShardOrder(samples, seed, [0.5, 0.3, 0.2][: len(samples)] if weighted else None)
    block = order.block(position)
    assert position in block
    assert {order.block(one) for one in block} == {block}
    assert order.block(block.stop).start == block.stop
    main = order.ratio.index(max(order.ratio))
    assert len({place.shard for place in map(order.place, block) if place.source == main}) == 1
    found: dict[tuple[int, int], int] = {}
    for first, source, shard in sorted(order.shards(block)):
        found.setdefault((source, shard), first)
    due: dict[tuple[int, int], int] = {}
    for one in block:
        due.setdefault(order.place(one)[:2], one)
    assert found == due


def test_few_shards_are_divided_so_that_nodes_share_a_pass() -> None:
    for shards, blocks in (([800], 8), ([400] * 3, 9), ([100] * 20, 20)):
        order = ShardOrder([shards], 1)
        starts = {order.block(position).start for position in range(sum(shards))}
        assert len(starts) == blocks >= BLOCKS_MIN


SHARES = st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0, 2.5]), min_size=3, max_size=3).filter(any)


@settings(deadline=None)
@given(
    st.lists(SHARDS, min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 200), SHARES), min_size=1, max_size=4),
    st.integers(0, 2**32),
)
def test_mixtures_that_follow_each_other_go_on_with_each_source(
    samples: list[list[int]], later: list[tuple[int, list[float]]], seed: int
) -> None:
    """Each source's samples come in the order that they would have alone, whenever the weights change."""
    orders = [ShardOrder(samples, seed, [1.0, 2.0, 1.0])]
    for length, weights in later:
        start = orders[-1].start + length
        orders.append(ShardOrder(samples, seed, weights, start, orders[-1].drawn_before(start)))
    mixed, last = Mixtures(orders), orders[-1].start + 60
    places = [mixed.place(position) for position in range(last)]
    for source in range(3):
        drawn = [place[1:] for place in places if place.source == source]
        assert drawn == [orders[0].sources[source].sample_at(entry) for entry in range(len(drawn))]
    assert places[: orders[1].start] == [orders[0].place(position) for position in range(orders[1].start)]

    position = 0
    while position < last:  # blocks follow each other without a gap
        block = mixed.block(position)
        assert block.start == position
        assert all(mixed.block(inside) == block for inside in block[:50])
        position = block.stop
    found = {(source, shard) for _, source, shard in mixed.shards(range(last))}
    assert found == {(place.source, place.shard) for place in places}
