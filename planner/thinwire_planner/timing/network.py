"""The lines between nodes: rates of each host, round trips between sites, and how edges share a line."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from thinwire_planner.timing.link import Congestion, Floats, Ints, transfer_s, wire_bits
from thinwire_proto.errors import ConfigError

HOST_BITS_S, HOST_RTT_S = 200e9, 20e-6
"""Between two nodes of a host: a PCIe bus."""


@dataclass(frozen=True, eq=False)
class Network:
    """Hosts with a line each, and nodes on them; host h has the nodes h·per_host and following.

    up_bits_s, down_bits_s, sites: float and int [hosts]. rtt_s: float [sites, sites], seconds of a round trip.
    """

    up_bits_s: Floats
    down_bits_s: Floats
    sites: Ints
    rtt_s: Floats
    per_host: int = 1
    loss: float = 0.0
    congestion: Congestion = "cubic"

    def __post_init__(self) -> None:
        hosts = len(self.up_bits_s)
        if not (hosts and len(self.down_bits_s) == hosts == len(self.sites)):
            raise ConfigError("network: each host needs a rate up, a rate down and a site")
        if min(self.up_bits_s.min(), self.down_bits_s.min()) <= 0 or self.rtt_s.min() < 0:
            raise ConfigError("network: rates must be more than 0, and round trips at least 0")
        if self.rtt_s.shape != (count := self.rtt_s.shape[0], count) or self.sites.max() >= count:
            raise ConfigError("network: there must be a round trip between any two sites")
        if not 0 <= self.loss < 1:
            raise ConfigError("network: the share of lost packets must be at least 0 and less than 1")

    @classmethod
    def uniform(
        cls,
        nodes: int,
        bits_s: float,
        rtt_s: float,
        *,
        down_bits_s: float | None = None,
        per_host: int = 1,
        loss: float = 0.0,
        congestion: Congestion = "cubic",
    ) -> Network:
        """Equal lines, one round trip apart. Raises ConfigError if the nodes do not fill the hosts."""
        if nodes < 1 or per_host < 1 or nodes % per_host:
            raise ConfigError(f"network: {nodes} nodes cannot be divided evenly into hosts of {per_host}")
        hosts = nodes // per_host
        return cls(
            np.full(hosts, float(bits_s)),
            np.full(hosts, float(down_bits_s or bits_s)),
            np.zeros(hosts, np.intp),
            np.full((1, 1), float(rtt_s)),
            per_host,
            loss,
            congestion,
        )

    @property
    def hosts(self) -> int:
        return len(self.up_bits_s)

    @property
    def nodes(self) -> int:
        return self.hosts * self.per_host

    @property
    def typical_rtt_s(self) -> float:
        """The median round trip between two hosts."""
        if self.hosts == 1:
            return HOST_RTT_S
        between = self.rtt_s[np.ix_(self.sites, self.sites)]
        return float(np.median(between[~np.eye(self.hosts, dtype=bool)]))

    def edges_s(self, senders: Ints, receivers: Ints, size_bytes: float, idle_s: float) -> Floats:
        """Seconds of one message on each edge, all at the same time: edges of a host share its line.

        rate = min(U/out, D/in), with as many edges out of the sender's host and into the receiver's.
        """
        home, target = senders // self.per_host, receivers // self.per_host
        inside = home == target
        out = np.bincount(home[~inside], minlength=self.hosts)
        into = np.bincount(target[~inside], minlength=self.hosts)
        rate = np.minimum(
            self.up_bits_s[home] / np.maximum(out[home], 1), self.down_bits_s[target] / np.maximum(into[target], 1)
        )
        seconds = transfer_s(
            size_bytes,
            self.rtt_s[self.sites[home], self.sites[target]],
            rate,
            loss=self.loss,
            congestion=self.congestion,
            idle_s=idle_s,
        )
        if not inside.any():
            return seconds
        own = np.bincount(senders[inside], minlength=self.nodes)
        local = transfer_s(size_bytes, HOST_RTT_S, HOST_BITS_S / np.maximum(own[senders], 1))
        return np.where(inside, local, seconds)

    def busy_s(self, senders: Ints, receivers: Ints, size_bytes: float) -> Floats:
        """Seconds for which messages on these edges occupy each line: [2, hosts], up and down."""
        home, target = senders // self.per_host, receivers // self.per_host
        between = home != target
        counts = [np.bincount(ends[between], minlength=self.hosts) for ends in (home, target)]
        rates = np.asarray([self.up_bits_s, self.down_bits_s])
        return np.asarray(np.asarray(counts) * wire_bits(size_bytes) / rates)

    def scaled(self, *, rate: float = 1.0, rtt: float = 1.0) -> Network:
        """The same network with all rates and round trips between hosts multiplied."""
        return replace(
            self, up_bits_s=self.up_bits_s * rate, down_bits_s=self.down_bits_s * rate, rtt_s=self.rtt_s * rtt
        )

    def resized(self, nodes: int) -> Network:
        """The same kinds of hosts in the same proportions, with another number of nodes: a multiple of per_host."""
        chosen = np.arange(nodes // self.per_host) * self.hosts * self.per_host // nodes
        return replace(
            self,
            up_bits_s=self.up_bits_s[chosen],
            down_bits_s=self.down_bits_s[chosen],
            sites=self.sites[chosen],
        )
