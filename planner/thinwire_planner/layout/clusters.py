"""Clusters of hosts that are close and about as fast, after Ravnest (arXiv 2401.01728).

Inside a cluster the gradients are averaged exactly, by a ring all-reduce; between clusters there is gossip. Two
clusters are joined, the closest first, while they are about as fast and the all-reduce takes a small part of a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from thinwire_planner.timing.link import Floats

Cluster = tuple[int, ...]
SPEED_RATIO_MAX = 1.25
"""Fastest over slowest of a cluster, since a cluster steps at the pace of its slowest."""
EXCHANGE_PART_MAX = 0.5
"""Part of a step's computing that the exchange inside a cluster may take."""


def clusters_of(part_pairs: Floats, speeds: Sequence[float], step_s: float) -> tuple[Cluster, ...]:
    """Clusters of hosts, each ascending, in the order of their first hosts.

    part_pairs: seconds of a whole exchange between any two hosts; a ring all-reduce takes about twice that of its
    slowest pair. step_s: computing of a step.
    """
    clusters: list[Cluster] = [(host,) for host in range(len(speeds))]
    while True:
        joined = [
            (_slowest(one + other, part_pairs), at, beside)
            for at, one in enumerate(clusters)
            for beside, other in enumerate(clusters[at + 1 :], at + 1)
            if _are_alike(one + other, speeds)
        ]
        if not joined:
            return tuple(clusters)
        seconds, at, beside = min(joined)
        if 2 * seconds > EXCHANGE_PART_MAX * step_s:
            return tuple(clusters)
        whole = tuple(sorted(clusters[at] + clusters[beside]))
        clusters = sorted([whole, *(cluster for number, cluster in enumerate(clusters) if number not in (at, beside))])


def _slowest(members: Cluster, pairs: Floats) -> float:
    return float(pairs[list(members)][:, list(members)].max())


def _are_alike(members: Cluster, speeds: Sequence[float]) -> bool:
    own = [speeds[host] for host in members]
    return max(own) <= SPEED_RATIO_MAX * min(own)
