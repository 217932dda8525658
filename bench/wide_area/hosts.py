"""A coordinator and some nodes, each in a network namespace of its own behind an access line, all meeting in a hub.

The problem: both systems must see the same links, and the numbers on them must mean the same for both. Shaping the
nodes' lines alone would give a path from node to node twice the delay and loss of one from node to coordinator, and
favour whoever has a coordinator. So the coordinator, too, has a line, without a limit on its rate (it stands for a
machine in a data centre), and every line carries a quarter of the round trip in each direction and half of the loss:
any two hosts are then one whole round trip and one whole loss apart.

Where the kernel has netem, a line is a veth pair with a netem qdisc at either end, and the hub is a bridge. Else it is
a TUN device that `bench.wide_area.tun` serves.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.wide_area.line import BITS, MEGA, MTU_BYTES, Quality
from bench.wide_area.needs import IP, run
from bench.wide_area.programs import Programs, module
from deploy.local_swarm.processes import uninterrupted

DEVICE = "wan0"
NETWORK = "10.99.0"
QUEUE_BYTES_MIN = 64 * 1024
UNLIMITED_PACKETS = 1_000_000


@dataclass(frozen=True)
class Link:
    """What lies between any two hosts."""

    rate_mbit: float
    """Of a node's line, in either direction."""
    round_trip_ms: float
    loss: float
    """Share of the packets, on the way from any host to any other."""

    def dilated(self, dilation: float) -> Link:
        """The same in a world whose second lasts `dilation` seconds of the machine's clock."""
        return Link(self.rate_mbit / dilation, self.round_trip_ms * dilation, self.loss)

    def quality(self, *, limited: bool) -> Quality:
        """Of one of the two lines of a path. The queue holds what is under way in a round trip."""
        in_flight_bytes = self.rate_mbit * MEGA / BITS * self.round_trip_ms / 1000
        return Quality(
            rate_mbit=self.rate_mbit if limited else None,
            delay_ms=self.round_trip_ms / 4,
            loss=1 - math.sqrt(1 - self.loss),
            queue_bytes=max(QUEUE_BYTES_MIN, round(in_flight_bytes)),
        )


@dataclass(frozen=True)
class Traffic:
    """Bytes that the kernel counted on a host's device, IP headers included."""

    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class Host:
    name: str
    namespace: str
    address: str

    def inside(self, *command: str) -> list[str]:
        """The command, to be run in this host's namespace; it replaces `ip`, so its process is the one started."""
        return [IP, "netns", "exec", self.namespace, *command]

    def traffic(self) -> Traffic:
        link = json.loads(run(IP, "-n", self.namespace, "-s", "-j", "link", "show", "dev", DEVICE))[0]
        return Traffic(link["stats64"]["tx"]["bytes"], link["stats64"]["rx"]["bytes"])


@dataclass(frozen=True)
class Hosts:
    coordinator: Host
    nodes: list[Host]
    line_pid: int
    """Of the process that carries packets; 0 where the kernel does."""


@contextmanager
def hosts_behind(link: Link, nodes: int, netem: bool, seed: int, folder: Path) -> Iterator[Hosts]:
    """Make the hosts and their lines; whatever happens, all of it is gone afterwards."""
    names = ["coordinator", *(f"node-{number}" for number in range(1, nodes + 1))]
    prefix = f"thinwire-{os.getpid()}-"
    hub = f"{prefix}hub"
    hosts = [Host(name, prefix + name, f"{NETWORK}.{place}") for place, name in enumerate(names, 1)]
    qualities = [link.quality(limited=name != "coordinator") for name in names]
    try:
        with Programs(folder) as programs:
            for namespace in (hub, *(host.namespace for host in hosts)):
                _make_namespace(namespace)
            make = _bridge if netem else _carry
            line_pid = make(hub, hosts, qualities, seed, programs)
            for host in hosts:
                _settle(host)
            yield Hosts(hosts[0], hosts[1:], line_pid)
    finally:
        with uninterrupted():
            for namespace in (hub, *(host.namespace for host in hosts)):
                subprocess.run([IP, "netns", "del", namespace], check=False, capture_output=True)


def _carry(hub: str, hosts: list[Host], qualities: list[Quality], seed: int, programs: Programs) -> int:
    """TUN devices, made by the process that serves them and then moved to where they belong."""
    command = [*module("bench.wide_area.tun"), "--seed", str(seed)]
    command += ["--qualities", json.dumps([asdict(quality) for quality in qualities])]
    command += ["--devices", *(host.name for host in hosts)]
    line = programs.start("line", [IP, "netns", "exec", hub, *command])
    programs.wait_for(line, "ready")
    for host in hosts:
        run(IP, "-n", hub, "link", "set", "dev", host.name, "netns", host.namespace, "name", DEVICE)
    return line.popen.pid


def _bridge(hub: str, hosts: list[Host], qualities: list[Quality], seed: int, programs: Programs) -> int:
    """veth pairs from each host to a bridge, with netem on what either end sends. Its loss is not by our seed."""
    run(IP, "-n", hub, "link", "add", "bridge", "type", "bridge")
    run(IP, "-n", hub, "link", "set", "dev", "bridge", "up")
    for host, quality in zip(hosts, qualities, strict=True):
        peer = ["peer", "name", DEVICE, "netns", host.namespace]
        run(IP, "-n", hub, "link", "add", host.name, "type", "veth", *peer)
        run(IP, "-n", hub, "link", "set", "dev", host.name, "master", "bridge", "up")
        for namespace, device in ((hub, host.name), (host.namespace, DEVICE)):
            # else 64 kB at a time would be one packet to the line, and be lost as one
            run(IP, "-n", namespace, "link", "set", "dev", device, "gso_max_segs", "1")
            run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *netem_arguments(quality))
    return 0


def netem_arguments(quality: Quality) -> list[str]:
    """netem's limit counts packets, those under way included."""
    arguments = ["netem", "delay", f"{quality.delay_ms:g}ms", "loss", f"{100 * quality.loss:.4f}%"]
    if quality.rate_mbit is None:
        return [*arguments, "limit", str(UNLIMITED_PACKETS)]
    under_way_bytes = quality.rate_mbit * MEGA / BITS * quality.delay_ms / 1000
    limit = math.ceil((quality.queue_bytes + under_way_bytes) / MTU_BYTES)
    return [*arguments, "rate", f"{quality.rate_mbit:g}mbit", "limit", str(limit)]


def _make_namespace(namespace: str) -> None:
    """Without IPv6, which talks unasked and would be counted."""
    run(IP, "netns", "add", namespace)
    quiet = 'for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do [ ! -e "$file" ] || echo 1 > "$file"; done'
    run(IP, "netns", "exec", namespace, "sh", "-c", quiet)
    run(IP, "-n", namespace, "link", "set", "dev", "lo", "up")


def _settle(host: Host) -> None:
    run(IP, "-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", DEVICE)
    run(IP, "-n", host.namespace, "link", "set", "dev", DEVICE, "mtu", str(MTU_BYTES), "up")
