"""Clusters: a ring all-reduce of gradients inside each, and overlapped gossip of parameters between them.

A cluster is one node of the gossip. It computes as long as its slowest member, and the exchange inside comes after.
Each member hands its part of the parameters to a member of the other cluster, all at the same time, so a message is as
long as a member's part of it over the slowest line between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from thinwire_planner.layout.clusters import Cluster, clusters_of
from thinwire_planner.layout.pairs import pair_seconds
from thinwire_planner.methods.gossip import CODECS, FAMILY, CodecBytes, arcs_of
from thinwire_planner.methods.method import FLOAT32_BYTES, Forecast, Setting, Variant, register_method
from thinwire_planner.timing.link import Floats
from thinwire_planner.timing.max_plus import iteration_s, iterations_for
from thinwire_planner.timing.network import Network
from thinwire_proto.all_reduce import ring_bytes
from thinwire_proto.errors import ConfigError

HOSTS_MAX = 64
"""Clusters of more hosts are not looked for: joining compares all pairs of clusters."""
TOPOLOGY = "one-peer-exponential"


@lru_cache(maxsize=64)
def _clusters(network: Network, parameters: int, speeds: tuple[float, ...], step_s: float) -> tuple[Cluster, ...]:
    return clusters_of(pair_seconds(network, FLOAT32_BYTES * parameters), speeds, step_s)


@dataclass(frozen=True)
class ClusteredVariant:
    codec: CodecBytes
    family: str = FAMILY
    is_overlapped: bool = True
    without_overlap: str = ""
    slack: int = 0
    looseness: float = 3.5
    arms: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"clusters, exact inside, {self.codec.name} gossip between"

    @property
    def caution(self) -> str:
        return self.codec.caution or "is a prediction only: no exchange of this project does it yet"

    def forecast(self, setting: Setting) -> Forecast:
        network = setting.network
        clusters = clusters_in(setting)
        if len(clusters) < 2 or len(clusters) == network.hosts:
            raise ConfigError("planner: the hosts form no clusters")
        computing = setting.compute.draw(setting.seed, setting.iterations_max, setting.speeds)
        exact = np.asarray([_inside_s(network, cluster, setting.parameters) for cluster in clusters])
        slowest = np.stack([computing[:, list(cluster)].max(axis=1) for cluster in clusters], axis=1)
        cycle = arcs_of(TOPOLOGY, len(clusters), 1, setting.seed)
        size = self.codec.bytes_a_parameter * setting.parameters
        transfers = [
            np.asarray(
                [
                    _between_s(network, clusters[int(sender)], clusters[int(receiver)], size)
                    for sender, receiver in zip(arcs.senders, arcs.receivers, strict=True)
                ]
            )
            for arcs in cycle
        ]
        own = setting.parameters * self.codec.coding_s_a_parameter
        count = min(iterations_for(cycle, setting.iterations_max), len(slowest))
        seconds = iteration_s(cycle, transfers, slowest[:count] + exact + own)
        members = network.hosts / len(clusters)
        return Forecast(
            seconds,
            ring_bytes(round(members)) + 2 * self.codec.bytes_a_parameter / members,
            (("computing", float(slowest.mean())), ("inside", float(exact.mean())), ("message", _longest(transfers))),
        )


def clusters_in(setting: Setting) -> tuple[Cluster, ...]:
    return _clusters(setting.network, setting.parameters, setting.speeds, setting.mean_s)


def _longest(transfers: list[Floats]) -> float:
    return max((float(times.max()) for times in transfers if len(times)), default=0.0)


def _inside_s(network: Network, cluster: Cluster, parameters: int) -> float:
    """A ring all-reduce among the members."""
    count = len(cluster)
    if count == 1:
        return 0.0
    part = pair_seconds(network, FLOAT32_BYTES * parameters / count)[np.ix_(cluster, cluster)]
    return 2 * (count - 1) * float(part.max())


def _between_s(network: Network, one: Cluster, other: Cluster, size_bytes: float) -> float:
    """Each member of the smaller cluster carries an equal part."""
    part = size_bytes / min(len(one), len(other))
    return float(pair_seconds(network, part)[np.ix_(one, other)].max())


@register_method("clusters")
def clustered(setting: Setting) -> Iterator[Variant]:
    network = setting.network
    if network.per_host == 1 and 2 < network.hosts <= HOSTS_MAX and 1 < len(clusters_in(setting)) < network.hosts:
        for codec in CODECS:
            yield ClusteredVariant(codec)
