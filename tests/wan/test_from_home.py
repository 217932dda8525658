"""Strangers on two networks: an organizer on the internet, and a volunteer at home, behind a router.

                 203.0.113.0/24                        192.168.50.0/24, hidden by NAT
    organizer ── 2001:db8:1::/64 ── router (proxy) ── 2001:db8:2::/64 ── volunteer

Each types two commands, from empty folders: `serve` and `invite`, `start` and `status`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.wide_area.needs import IP, check_emulation, run
from bench.wide_area.programs import Programs
from deploy.local_swarm.processes import BIN, uninterrupted
from support.real import run_text, until

MACHINE = check_emulation()
START_S = 120.0
TESTS = Path(__file__).resolve().parents[1]
PREFIX = f"thinwire-{os.getpid()}-"
MISSING = MACHINE.missing or ", ".join(name for name in ("iptables", "sysctl") if shutil.which(name) is None)
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"two networks need {MISSING}")


def inside(host: str, *command: str) -> list[str]:
    return [IP, "netns", "exec", PREFIX + host, *command]


@pytest.fixture
def networks() -> Iterator[None]:
    hosts = ("organizer", "router", "volunteer")
    lines = (
        ("organizer", "203.0.113.2/24", "203.0.113.1/24", "2001:db8:1::2/64", "2001:db8:1::1/64"),
        ("volunteer", "192.168.50.2/24", "192.168.50.1/24", "2001:db8:2::2/64", "2001:db8:2::1/64"),
    )
    try:
        for host in hosts:
            run(IP, "netns", "add", PREFIX + host)
            run(IP, "-n", PREFIX + host, "link", "set", "lo", "up")
        for host, own, routers, own6, routers6 in lines:
            namespace, router = PREFIX + host, PREFIX + "router"
            peer = ("peer", "name", f"to-{host}", "netns", router)
            run(IP, "-n", namespace, "link", "add", "net", "type", "veth", *peer)
            for where, device, addresses in (
                (namespace, "net", (own, own6)),
                (router, f"to-{host}", (routers, routers6)),
            ):
                for address in addresses:
                    # nodad: an address that is still being probed for duplicates cannot be used
                    run(IP, "-n", where, "addr", "add", address, "dev", device, *(["nodad"] if ":" in address else []))
                run(IP, "-n", where, "link", "set", device, "up")
            for gateway in (routers, routers6):
                if host == "volunteer" or ":" in gateway:  # the organizer has no way to the addresses behind the NAT
                    run(IP, "-n", namespace, "route", "add", "default", "via", gateway.partition("/")[0])
        for setting in ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"):
            run(*inside("router", "sysctl", "-qw", setting))
        masquerade = ("-t", "nat", "-A", "POSTROUTING", "-o", "to-organizer", "-j", "MASQUERADE")
        run(*inside("router", "iptables", *masquerade))
        yield
    finally:
        with uninterrupted():
            for host in hosts:
                subprocess.run([IP, "netns", "del", PREFIX + host], check=False, capture_output=True)


def organize(folder: Path, programs: Programs, listen: str, *more: str) -> str:
    """The organizer's two commands. Returns the invite."""
    (folder / "RUN.toml").write_text(run_text(1_000_000))
    state = folder / "coordinator"
    serve = [str(BIN / "thinwire-coordinator"), "serve", "--state-dir", str(state), "--listen", listen, *more]
    coordinator = programs.start("coordinator", inside("organizer", *serve, "--run", str(folder / "RUN.toml")))
    coordinator.wait_until_ready(state, START_S)
    invite = inside("organizer", str(BIN / "thinwire-coordinator"), "invite", "--state-dir", str(state))
    return subprocess.run(invite, check=True, capture_output=True, text=True).stdout.splitlines()[-1]


def volunteer(folder: Path, programs: Programs, invite: str, **environment: str) -> None:
    """The volunteer's two commands; the second one until it shows a counted contribution."""
    env = [f"{name}={value}" for name, value in environment.items()]
    state = folder / "node"
    start = [
        str(BIN / "thinwire-node"),
        "start",
        invite,
        "--state-dir",
        str(state),
        "--threads",
        "1",
        "--device",
        "cpu",
    ]
    node = programs.start("node", inside("volunteer", "env", *env, *start))
    status = inside("volunteer", str(BIN / "thinwire-node"), "status", "--state-dir", str(state), "--json")

    def counted() -> bool:
        shown = subprocess.run(status, check=False, capture_output=True, text=True)
        return shown.returncode == 0 and json.loads(shown.stdout)["given"]["counted"] > 0

    until(counted, "a contribution is counted", node, *programs.all, progress=lambda: node.ready(state))


def test_a_volunteer_behind_nat_contributes(tmp_path: Path, networks: None) -> None:
    with Programs(tmp_path) as programs:
        invite = organize(tmp_path, programs, "0.0.0.0:7700", "--address", "203.0.113.2:7700")
        volunteer(tmp_path, programs, invite)
        peers = subprocess.run(
            inside(
                "organizer",
                str(BIN / "thinwire-coordinator"),
                "nodes",
                "--json",
                "--state-dir",
                str(tmp_path / "coordinator"),
            ),
            check=True,
            capture_output=True,
            text=True,
        )
        assert json.loads(peers.stdout)[0]["address"] == "203.0.113.1"  # the router's, not the volunteer's own


def test_a_volunteer_contributes_over_ipv6(tmp_path: Path, networks: None) -> None:
    with Programs(tmp_path) as programs:
        invite = organize(tmp_path, programs, "[::]:7700", "--address", "[2001:db8:1::2]:7700")
        volunteer(tmp_path, programs, invite)


def test_a_volunteer_whom_only_a_proxy_lets_out_contributes(tmp_path: Path, networks: None) -> None:
    run(*inside("router", "iptables", "-P", "FORWARD", "DROP"))
    with Programs(tmp_path) as programs:
        command = ["env", f"PYTHONPATH={TESTS}", str(BIN / "python"), "-m", "support.connect_proxy"]
        proxy = programs.start("proxy", inside("router", *command, "192.168.50.1:3128", "me:secret"))
        until(lambda: "listening" in proxy.text(), "the proxy listens", proxy)
        invite = organize(tmp_path, programs, "0.0.0.0:7700", "--address", "203.0.113.2:7700")
        volunteer(tmp_path, programs, invite, https_proxy="http://me:secret@192.168.50.1:3128")
        assert "passed 203.0.113.2:7700" in proxy.text()


def test_the_coordinator_says_who_can_reach_it(tmp_path: Path, networks: None) -> None:
    with Programs(tmp_path) as programs:
        organize(tmp_path, programs, "0.0.0.0:7700", "--address", "203.0.113.9:7700")
        (coordinator,) = programs.all
        until(lambda: "does not reach itself there" in coordinator.text(), "the coordinator has tried", coordinator)
        assert "forward TCP port 7700 there to port 7700 of this machine" in coordinator.text()
