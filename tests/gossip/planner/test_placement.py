"""Placement on a topology, as the planner uses it."""

from __future__ import annotations

import numpy as np

from thinwire_planner.methods.gossip import CODECS, GossipVariant
from thinwire_planner.methods.method import Setting
from thinwire_planner.timing.compute import ComputeTimes
from thinwire_planner.timing.network import Network


def two_sites(speeds: tuple[float, ...] = (1.0,) * 8, fast: float = 1e10, mbit: float = 50) -> Setting:
    """Hosts of two sites in turn, each with fast lines inside; between them the round trip is long."""
    network = Network(
        np.full(8, mbit * 1e6),
        np.full(8, mbit * 1e6),
        np.asarray([0, 1] * 4),
        np.asarray([[1e-4, 0.6], [0.6, 1e-4]]),
    )
    return Setting(100_000, ComputeTimes.around(1.0, 0.1), network, speeds, fast, fast)


def test_placement_keeps_the_ring_of_two_sites_from_crossing_more_than_twice() -> None:
    """In the given order every edge of the ring crosses between the sites."""
    setting = two_sites(mbit=20)
    found = GossipVariant("ring", CODECS[0]).forecast(setting)
    sites = [int(setting.network.sites[host]) for host in found.order]
    assert sum(one != other for one, other in zip(sites, [*sites[1:], sites[0]], strict=True)) == 2
