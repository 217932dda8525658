"""Tests of the order of samples: each pass has every sample once, in an order that is equal on all machines."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from thinwire_proto.data.order import SAMPLES_MAX, sample_at

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
