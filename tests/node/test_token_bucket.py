"""The pace of bytes, on a clock of the test's own."""

from __future__ import annotations

import random

import pytest

from thinwire_node.limits.throttle import BURST_S, TokenBucket

RATE = 1000.0


@pytest.mark.parametrize("seed", range(5))
def test_no_more_passes_in_any_time_than_the_rate_and_one_piece(seed: int) -> None:
    draw, bucket = random.Random(seed), TokenBucket(RATE, 0.0)
    now, passed = 0.0, [(0.0, 0.0)]
    while now < 60.0:
        if draw.random() < 0.05:
            now += draw.random()  # there is nothing to send
        now += bucket.wait_s(now)
        assert bucket.wait_s(now) < 1e-9
        piece = draw.choice((10.0, 50.0, 100.0))
        bucket.charge(piece, now)
        passed.append((now, passed[-1][1] + piece))
    for number, (first_s, first) in enumerate(passed):
        for last_s, last in passed[number + 1 :: 7]:
            assert last - first <= (last_s - first_s + BURST_S) * RATE + 100.0 + 1e-6
    assert passed[-1][1] > 0.5 * 60 * RATE


def test_bytes_that_have_passed_unasked_are_made_good() -> None:
    bucket = TokenBucket(RATE, 0.0)
    bucket.charge(500.0, 0.0)  # such as acknowledgements and repetitions
    assert bucket.wait_s(0.0) == pytest.approx(0.5)
    bucket.set_rate(100.0, 0.0)
    assert bucket.wait_s(0.0) == pytest.approx(5.0)
    bucket.set_rate(None, 1.0)
    bucket.charge(10**9, 1.0)
    assert bucket.wait_s(1.0) == 0.0
