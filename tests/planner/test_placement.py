"""Placement and clusters against trying everything."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from thinwire_planner.layout.clusters import clusters_of
from thinwire_planner.layout.pairs import pair_seconds
from thinwire_planner.layout.placement import CycleEdges, anneal, cost_s, two_opt
from thinwire_planner.methods.clustered import ClusteredVariant, clusters_in
from thinwire_planner.methods.gossip import CODECS, GossipVariant
from thinwire_planner.methods.method import Setting
from thinwire_planner.timing.compute import ComputeTimes
from thinwire_planner.timing.link import Floats
from thinwire_planner.timing.max_plus import cycle_of
from thinwire_planner.timing.network import Network
from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.topology import Layout, make_topology

HOSTS = 6


def random_pairs(seed: int, hosts: int = HOSTS) -> Floats:
    drawn = np.random.default_rng(seed).uniform(0.1, 1.0, (hosts, hosts))
    pairs = np.asarray(np.maximum(drawn, drawn.T))
    np.fill_diagonal(pairs, 0.0)
    return pairs


def edges_of(name: str, hosts: int = HOSTS) -> CycleEdges:
    return CycleEdges.of(cycle_of(make_topology(name, Layout(hosts))))


def test_the_cost_is_the_slowest_edge_of_each_iteration() -> None:
    pairs = random_pairs(4)
    cycle = cycle_of(make_topology("one-peer-exponential", Layout(HOSTS)))
    slowest = [
        max(
            (float(pairs[one, other]) for one, other in zip(arcs.senders, arcs.receivers, strict=True)),
            default=0.0,
        )
        for arcs in cycle
    ]
    found = cost_s(range(HOSTS), CycleEdges.of(cycle), pairs)
    assert found == pytest.approx(np.mean(slowest), rel=0.01)


@pytest.mark.parametrize("name", ["ring", "one-peer-exponential", "tree"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_annealing_is_as_good_as_the_best_of_all_placements(name: str, seed: int) -> None:
    pairs, cycle = random_pairs(seed), edges_of(name)
    best = min(cost_s(order, cycle, pairs) for order in permutations(range(HOSTS)))
    found = anneal(cycle, pairs, seed)
    assert sorted(found) == list(range(HOSTS))
    assert cost_s(found, cycle, pairs) == pytest.approx(best, rel=0.02)


def test_annealing_repeats_and_never_worsens() -> None:
    pairs, cycle = random_pairs(5), edges_of("one-peer-exponential")
    assert anneal(cycle, pairs, 7) == anneal(cycle, pairs, 7)
    assert cost_s(anneal(cycle, pairs, 7, moves=1), cycle, pairs) <= cost_s(range(HOSTS), cycle, pairs)


def longest(order: tuple[int, ...], pairs: Floats) -> float:
    return max(float(pairs[one, other]) for one, other in zip(order, (*order[1:], order[0]), strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_two_opt_finds_a_ring_whose_longest_edge_is_near_the_best(seed: int) -> None:
    """Random pairs are the hardest case; with places in a plane it finds the best."""
    pairs = random_pairs(seed)
    best = min(longest((0, *order), pairs) for order in permutations(range(1, HOSTS)))
    found = two_opt(pairs)
    assert sorted(found) == list(range(HOSTS))
    assert longest(found, pairs) <= 1.3 * best


def test_two_opt_walks_around_a_circle() -> None:
    angles = np.random.default_rng(2).permutation(12) * 2 * np.pi / 12
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    pairs = np.linalg.norm(points[:, None] - points[None, :], axis=2)
    assert longest(two_opt(pairs), pairs) == pytest.approx(2 * np.sin(np.pi / 12))


def two_sites(speeds: tuple[float, ...] = (1.0,) * 8, fast: float = 1e10, mbit: float = 50) -> Setting:
    """Hosts of two sites in turn, each with fast lines inside; between them the round trip is long."""
    network = Network(
        np.full(8, mbit * 1e6),
        np.full(8, mbit * 1e6),
        np.asarray([0, 1] * 4),
        np.asarray([[1e-4, 0.6], [0.6, 1e-4]]),
    )
    return Setting(100_000, ComputeTimes.around(1.0, 0.1), network, speeds, fast, fast)


def test_close_hosts_of_one_speed_are_a_cluster() -> None:
    assert clusters_in(two_sites()) == ((0, 2, 4, 6), (1, 3, 5, 7))


def test_hosts_of_other_speed_are_another_cluster() -> None:
    speeds = (1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0)
    assert clusters_in(two_sites(speeds)) == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_slow_lines_make_no_clusters() -> None:
    pairs = np.full((4, 4), 10.0)
    np.fill_diagonal(pairs, 0.0)
    assert clusters_of(pairs, (1.0,) * 4, 1.0) == ((0,), (1,), (2,), (3,))
    with pytest.raises(ConfigError, match="no clusters"):
        ClusteredVariant(CODECS[0]).forecast(two_sites(mbit=0.1))


def test_a_clustered_step_is_computing_and_the_exchange_inside() -> None:
    setting = two_sites()
    forecast = ClusteredVariant(CODECS[3]).forecast(setting)
    parts = dict(forecast.parts)
    part = pair_seconds(setting.network, 4 * 100_000 / 4)[0, 2]
    assert parts["inside"] == pytest.approx(6 * part)
    assert forecast.seconds >= parts["computing"] + parts["inside"]


def test_placement_keeps_the_ring_of_two_sites_from_crossing_more_than_twice() -> None:
    """In the given order every edge of the ring crosses between the sites."""
    setting = two_sites(mbit=20)
    found = GossipVariant("ring", CODECS[0]).forecast(setting)
    sites = [int(setting.network.sites[host]) for host in found.order]
    assert sum(one != other for one, other in zip(sites, [*sites[1:], sites[0]], strict=True)) == 2
