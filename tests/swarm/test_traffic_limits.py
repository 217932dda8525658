"""Limits on a node's traffic, as the kernel of an emulated host counts it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.wide_area.hosts import Host, LinkSpec, hosts_behind
from bench.wide_area.line import LineQuality
from bench.wide_area.needs import check_emulation
from bench.wide_area.programs import Programs
from deploy.local_swarm.processes import Process
from support.emulated_hosts import coordinator_of, node_on
from support.real import ended, run_text, totals, until

MACHINE = check_emulation()
BULK = str(Path(__file__).parents[1] / "support" / "bulk.py")
SECONDS = 20.0
WINDOWS = 3
WITHIN = 0.05
CAP = 4e3
"""Bytes a second, of a line that carries four times as many."""

emulated = pytest.mark.skipif(bool(MACHINE.missing), reason=f"emulating links needs {MACHINE.missing}")


def begin(host: Host, *arguments: str) -> list[str]:
    return host.inside(sys.executable, BULK, *arguments)


@emulated
def test_caps_hold_as_the_kernel_counts(tmp_path: Path) -> None:
    up, down = 100e3, 400e3
    with hosts_behind(LinkSpec(20, 50, 0.0), 1, 1, tmp_path) as hosts, Programs(tmp_path) as programs:
        address, node = hosts.coordinator.address, hosts.nodes[0]
        server = programs.start("server", begin(hosts.coordinator, "serve", address, "7700"))
        until(server.text, "the server listens", server)
        unused = node.traffic().sent_bytes
        limits = (f"max-upload={up / 1e3}kB/s", f"max-download={down / 1e3}kB/s")
        programs.start("node", begin(node, "pass", address, "7700", str(tmp_path), *limits))
        until(lambda: node.traffic().sent_bytes > unused + 3 * up, "bytes pass")
        for _ in range(WINDOWS):
            parts = part_of(node, up, down)
            assert max(parts) < 1 + WITHIN
            if min(parts) > 1 - WITHIN:
                break  # a busy machine takes something of a window
    assert min(parts) > 1 - WITHIN


def part_of(node: Host, up: float, down: float) -> tuple[float, float]:
    """The parts of two caps, in bytes a second, that a host sends and receives in SECONDS."""
    first = time.monotonic(), node.traffic()
    time.sleep(SECONDS)
    seconds, last = time.monotonic() - first[0], node.traffic()
    sent, received = last.sent_bytes - first[1].sent_bytes, last.received_bytes - first[1].received_bytes
    return sent / seconds / up, received / seconds / down


@emulated
@pytest.mark.timeout(400)
def test_a_node_that_may_use_a_quarter_of_its_line_is_counted(tmp_path: Path) -> None:
    """Its line carries 16 kB/s up, a contribution of the usual size has 17 kB, and a round lasts 4 s. A busy machine
    makes one life of three late, and a cap that the node does not plan for makes all of them."""
    text = run_text(100_000, width=256, hidden=512, samples=100, length_ms=4000, rounds='pace = "clock"')
    thin = LineQuality(rate_mbit=4 * CAP * 8 / 1e6, delay_ms=20, loss=0.0, queue_bytes=32_000)
    with (
        hosts_behind(LinkSpec(10, 40, 0.0), 1, 1, tmp_path, last_up=thin) as hosts,
        Programs(tmp_path) as programs,
    ):
        coordinator_of(text, hosts, programs, tmp_path)
        lives = (share_counted(hosts.nodes[0], f"life-{number}", programs, tmp_path) for number in range(3))
        assert any(share >= 1 - WITHIN for share in lives)


def share_counted(host: Host, name: str, programs: Programs, folder: Path) -> float:
    """The share of 20 rounds in which a node with a cap is counted. It keeps to the cap in any case."""
    node = node_on(host, name, programs, folder, "--max-upload", f"{CAP / 1e3}kB/s", "--rounds", "20")
    until(lambda: node.events("node.joined"), "the node joins", node)
    began, before = time.monotonic(), host.traffic().sent_bytes
    assert ended(node, lambda: [report["node"]["given"]["counted"] for report in node.events("node.report")][-1:]) == 0
    assert (host.traffic().sent_bytes - before) / (time.monotonic() - began) < (1 + WITHIN) * CAP
    counted, not_counted = totals(node)
    return counted / (counted + not_counted)


@emulated
def test_monthly_data_are_not_passed_when_the_node_is_killed(tmp_path: Path) -> None:
    bound = 40_000_000
    with hosts_behind(LinkSpec(40, 10, 0.0), 1, 1, tmp_path) as hosts, Programs(tmp_path) as programs:
        address, host = hosts.coordinator.address, hosts.nodes[0]
        server = programs.start("server", begin(hosts.coordinator, "serve", address, "7700"))
        until(server.text, "the server listens", server)

        def passed() -> int:
            traffic = host.traffic()
            return traffic.sent_bytes + traffic.received_bytes

        lives, node = 0, ("pass", address, "7700", str(tmp_path), f"monthly-data={bound}")
        while lives < 4:
            before = passed()
            life = programs.start(f"life-{lives}", begin(host, *node))
            lives += 1
            _until_passed(passed, before + bound // 6, life)
            life.tell(signal.SIGKILL)
            ended(life)
        programs.start("last", begin(host, *node))
        until(lambda: _still(passed), "nothing passes any more")
        assert 0.7 * bound < passed() <= bound


def _still(passed: Callable[[], int]) -> bool:
    before = passed()
    time.sleep(3)
    return passed() == before


def _until_passed(passed: Callable[[], int], count: int, life: Process) -> None:
    until(lambda: passed() > count, "bytes pass", life)
