"""Counts of the bytes that nodes report of their direct lines."""

from __future__ import annotations

from thinwire_coordinator.hall.counts import DIRECT_BYTES_MAX, DIRECT_RATE_BYTES_MAX, Counts


def test_what_a_node_sent_before_the_coordinator_started_counts_nothing() -> None:
    counts = Counts(parameters=1)
    counts.direct_is("a", 1000, 500, is_older=True)
    counts.direct_is("a", 1010, 505)
    assert (counts.of("a").direct_up, counts.of("a").direct_down) == (10, 5)


def test_a_node_that_reports_too_much_is_counted_up_to_the_bound() -> None:
    counts = Counts(parameters=1)
    counts.direct_is("a", 2**64 - 1, 2**64 - 1)
    counts.direct_is("a", 0, 0)
    counts.direct_is("a", 2**64 - 1, 1)
    assert (counts.of("a").direct_up, counts.of("a").direct_down) == (DIRECT_BYTES_MAX, DIRECT_BYTES_MAX)
    assert (counts.direct_up, counts.direct_down) == (DIRECT_BYTES_MAX, DIRECT_BYTES_MAX)


def test_no_more_is_counted_than_a_line_carries_in_the_time_that_has_passed() -> None:
    counts = Counts(parameters=1)
    for elapsed_s in (2.0, 3.0):
        counts.direct_is("a", 2**64 - 1, 5, elapsed_s)
        counts.direct_is("a", 0, 0, elapsed_s)
        assert counts.of("a").direct_up == elapsed_s * DIRECT_RATE_BYTES_MAX
    assert counts.of("a").direct_down == 10
