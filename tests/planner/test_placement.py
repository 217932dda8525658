"""Clusters and placement, as the planner uses them."""

from __future__ import annotations

import numpy as np
import pytest

from thinwire_planner.layout.clusters import clusters_of
from thinwire_planner.layout.pairs import pair_seconds
from thinwire_planner.methods.clustered import ClusteredVariant, clusters_in
from thinwire_planner.methods.gossip import CODECS, GossipVariant
from thinwire_planner.methods.method import Setting
from thinwire_planner.timing.compute import ComputeTimes
from thinwire_planner.timing.network import Network
from thinwire_proto.errors import ConfigError


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
