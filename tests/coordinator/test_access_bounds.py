"""Tests the rules of admission: rates, open calls and the tables behind them."""

from __future__ import annotations

import pytest

from thinwire_coordinator.hall.access.admission import (
    CALLS_A_SESSION,
    CONTRIBUTIONS_A_ROUND,
    AdmissionRules,
    Bounds,
    Caller,
    Rate,
    TokenBuckets,
)
from thinwire_coordinator.hall.rpc.calls import UNKNOWN, network_of_peer

STRANGER = Caller("192.0.2.1")


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        ("ipv4:192.0.2.1:5000", "192.0.2.1"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:5000", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2::9]:1", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:192.0.2.1%5D:5000", "192.0.2.1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", "fe80::/64"),
        ("unix:/tmp/socket", UNKNOWN),
        ("ipv4:999.0.0.1:1", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_a_peer_counts_as_its_network(peer: str, network: str) -> None:
    assert network_of_peer(peer) == network


def test_a_bucket_allows_a_burst_and_then_its_rate() -> None:
    buckets = TokenBuckets(Rate(burst=3, each_s=2.0))
    assert [buckets.take("a", 10.0) for _ in range(4)] == [True, True, True, False]
    assert buckets.take("b", 10.0)  # another key has a bucket of its own
    assert buckets.wait_s("a", 11.0) == 1.0
    assert not buckets.take("a", 11.9)
    assert buckets.take("a", 12.0)
    assert [buckets.take("a", 1000.0) for _ in range(4)] == [True, True, True, False]  # it never holds more


def test_buckets_are_bounded_and_forget_the_oldest() -> None:
    buckets = TokenBuckets(Rate(burst=1, each_s=1000.0), keys_max=10)
    for number in range(1000):
        assert buckets.take(str(number), 0.0)
    assert len(buckets) == 10
    assert not buckets.take("999", 0.0)
    assert buckets.take("0", 0.0)


def test_a_network_that_calls_on_is_refused_while_others_are_not() -> None:
    rules = AdmissionRules(Bounds(nodes_max=4))
    denied = None
    for _ in range(10_000):
        if (denied := rules.begin(STRANGER, 0.0)) is not None:
            break
        rules.end(STRANGER)
    assert denied is not None
    assert "too many calls from your network" in denied.text
    assert rules.begin(Caller("198.51.100.7"), 0.0) is None
    assert rules.begin(Caller(STRANGER.network, "a-member"), 0.0) is None  # a neighbour that has joined
    assert rules.begin(STRANGER, 1.0) is None  # it may try again later


def test_open_calls_are_bounded_in_all_by_network_and_by_session() -> None:
    bounds = Bounds(nodes_max=4)
    rules = AdmissionRules(bounds)
    for _ in range(bounds.strangers_calls_a_network):
        assert rules.begin(STRANGER, 0.0) is None
    assert rules.begin(STRANGER, 0.0) is not None
    others = [Caller(f"network {number}") for number in range(1000)]
    assert sum(rules.begin(other, 0.0) is None for other in others) == (
        bounds.strangers_calls_max - bounds.strangers_calls_a_network
    )
    assert rules.calls.of_strangers == bounds.strangers_calls_max
    member = Caller(STRANGER.network, "a-member")
    assert [rules.begin(member, 0.0) is None for _ in range(CALLS_A_SESSION + 1)] == [True] * CALLS_A_SESSION + [False]
    rules.end(member)
    assert rules.begin(member, 0.0) is None
    rules.end(STRANGER)
    assert rules.begin(others[-1], 0.0) is None  # a refused call took no place


def test_refused_joins_make_a_network_wait_but_not_its_enrolled_nodes() -> None:
    rules = AdmissionRules(Bounds(nodes_max=100))
    failed = 0
    while rules.join(STRANGER, known=False, now=0.0) is None:
        rules.join_failed(STRANGER, 0.0)
        failed += 1
    assert failed == rules.bounds.failed_joins.burst
    assert rules.join(STRANGER, known=True, now=0.0) is None
    assert rules.join(Caller("198.51.100.7"), known=False, now=0.0) is None
    assert rules.join(STRANGER, known=False, now=rules.bounds.failed_joins.each_s) is None


def test_a_node_may_offer_a_few_contributions_in_a_round() -> None:
    rules = AdmissionRules(Bounds(nodes_max=4))
    offered = [rules.contribution("a", 7) is None for _ in range(100)]
    assert offered == [True] * CONTRIBUTIONS_A_ROUND + [False] * (100 - CONTRIBUTIONS_A_ROUND)
    assert rules.contribution("b", 7) is None
    assert rules.contribution("a", 8) is None
