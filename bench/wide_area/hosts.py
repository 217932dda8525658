"""A coordinator and nodes, each in its own network namespace behind an access line, connected by a hub.

The problem: both systems must see the same links, and the numbers of a link must mean the same for both. If only the
nodes' lines were shaped, a path between two nodes would have twice the delay and loss of a path to the coordinator,
which would favour the system that has a coordinator. So the coordinator has a line too, without a rate limit (it stands
for a machine in a data centre). Every line has a quarter of the round trip in each direction and half of the loss. Any
two hosts are then one full round trip and one full loss apart.

A line is a TUN device served by `bench.wide_area.tun`: the same on any kernel, with losses that follow a seed.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path

from bench.wide_area.cores import in_group
from bench.wide_area.line import BITS, DEVICE, MEGA, MTU_BYTES, LineQuality
from bench.wide_area.needs import IP, run
from bench.wide_area.programs import Programs, module
from deploy.local_swarm.processes import uninterrupted

NETWORK = "10.99.0"
QUEUE_BYTES_MIN = 64 * 1024


@dataclass(frozen=True)
class LinkSpec:
    """The link between any two hosts."""

    rate_mbit: float
    """Rate of a node's line, in each direction."""
    round_trip_ms: float
    loss: float
    """Share of packets lost between any two hosts."""

    def dilated(self, dilation: float) -> LinkSpec:
        """The same link in a world whose second lasts `dilation` seconds of the machine's clock."""
        return LinkSpec(self.rate_mbit / dilation, self.round_trip_ms * dilation, self.loss)

    def quality(self, *, limited: bool) -> LineQuality:
        """Quality of one of the two lines of a path. The queue holds the data in flight of one round trip."""
        in_flight_bytes = self.rate_mbit * MEGA / BITS * self.round_trip_ms / 1000
        return LineQuality(
            rate_mbit=self.rate_mbit if limited else None,
            delay_ms=self.round_trip_ms / 4,
            loss=1 - math.sqrt(1 - self.loss),
            queue_bytes=max(QUEUE_BYTES_MIN, round(in_flight_bytes)),
        )


@dataclass(frozen=True)
class DeviceBytes:
    """Bytes that the kernel counted on a host's device, including IP headers."""

    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class Host:
    name: str
    namespace: str
    address: str
    group: Path | None = None
    """The control group of its processes, which says how much of the cores they may use."""

    def inside(self, *command: str) -> list[str]:
        """The command to run in this host's namespace. `ip` execs it, so the started process is the command itself."""
        # the group first, because `ip` mounts a /sys without groups
        return in_group(self.group, [IP, "netns", "exec", self.namespace, *command])

    def pids(self) -> list[int]:
        """All processes in this host's namespace."""
        return [int(pid) for pid in run(IP, "netns", "pids", self.namespace).split()]

    def traffic(self) -> DeviceBytes:
        link = json.loads(run(IP, "-n", self.namespace, "-s", "-j", "link", "show", "dev", DEVICE))[0]
        return DeviceBytes(link["stats64"]["tx"]["bytes"], link["stats64"]["rx"]["bytes"])


@dataclass(frozen=True)
class Hosts:
    coordinator: Host
    nodes: list[Host]
    line_pid: int
    """Process that carries packets."""


@contextmanager
def hosts_behind(
    link: LinkSpec,
    nodes: int,
    seed: int,
    folder: Path,
    last_up: LineQuality | None = None,
    groups: Sequence[Path] = (),
) -> Iterator[Hosts]:
    """Create the hosts and their lines, and remove them at the end in any case.

    last_up: the line up of the last node, if it differs. groups: control groups of the nodes, if they have any
    (`bench.wide_area.cores`)."""
    names = ["coordinator", *(f"node-{number}" for number in range(1, nodes + 1))]
    prefix = f"thinwire-{os.getpid()}-"
    hub = f"{prefix}hub"
    hosts = [
        Host(name, prefix + name, f"{NETWORK}.{number}", group)
        for number, (name, group) in enumerate(zip_longest(names, (None, *groups)), 1)
    ]
    qualities = [link.quality(limited=name != "coordinator") for name in names]
    try:
        with Programs(folder) as programs:
            for namespace in (hub, *(host.namespace for host in hosts)):
                _make_namespace(namespace)
            up = qualities if last_up is None else [*qualities[:-1], last_up]
            line_pid = _tun_devices(hub, hosts, up, qualities, seed, programs)
            for host in hosts:
                _configure_address(host)
            yield Hosts(hosts[0], hosts[1:], line_pid)
    finally:
        with uninterrupted():
            for namespace in (hub, *(host.namespace for host in hosts)):
                subprocess.run([IP, "netns", "del", namespace], check=False, capture_output=True)


def _tun_devices(
    hub: str, hosts: list[Host], up: list[LineQuality], down: list[LineQuality], seed: int, programs: Programs
) -> int:
    """Create TUN devices in the process that serves them, and move each to its host."""
    command = [*module("bench.wide_area.tun"), "--seed", str(seed)]
    for name, qualities in (("--up", up), ("--down", down)):
        command += [name, json.dumps([asdict(quality) for quality in qualities])]
    command += ["--devices", *(host.name for host in hosts)]
    line = programs.start("line", [IP, "netns", "exec", hub, *command])
    programs.wait_for(line, "ready")
    for host in hosts:
        run(IP, "-n", hub, "link", "set", "dev", host.name, "netns", host.namespace, "name", DEVICE)
    return line.popen.pid


def _make_namespace(namespace: str) -> None:
    """Create a namespace without IPv6, whose unsolicited packets would be counted."""
    run(IP, "netns", "add", namespace)
    quiet = 'for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do [ ! -e "$file" ] || echo 1 > "$file"; done'
    run(IP, "netns", "exec", namespace, "sh", "-c", quiet)
    run(IP, "-n", namespace, "link", "set", "dev", "lo", "up")


def _configure_address(host: Host) -> None:
    run(IP, "-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", DEVICE)
    run(IP, "-n", host.namespace, "link", "set", "dev", DEVICE, "mtu", str(MTU_BYTES), "up")
