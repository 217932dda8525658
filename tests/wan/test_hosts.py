"""Real packets over a real line between real namespaces, and cleanup afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.wide_area.hosts import Host, Hosts, LinkSpec, hosts_behind
from bench.wide_area.needs import IP, check_emulation
from support.real import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
MACHINE = check_emulation()
PORT = 5000
RATE_MBIT = 20.0
ROUND_TRIP_MS = 40.0
PAYLOAD_BYTES = 4_000_000
DATAGRAMS = 1000

LISTEN = f"""
import socket
with socket.create_server(("0.0.0.0", {PORT})) as server, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
    datagrams.bind(("0.0.0.0", {PORT}))
    print("listening", flush=True)
    connection, _ = server.accept()
    connection.sendall(connection.recv(1))
    while connection.recv(1 << 16):
        pass
    connection.sendall(b"x")
    connection.recv(1)
    datagrams.settimeout(5)
    count = 0
    try:
        while datagrams.recv(100):
            count += 1
    except TimeoutError:
        print(count)
"""
SEND = f"""
import socket, sys, time
connection = socket.create_connection((sys.argv[1], {PORT}))
began = time.perf_counter()
connection.sendall(b"x")
connection.recv(1)
round_trip_s = time.perf_counter() - began
began = time.perf_counter()
connection.sendall(bytes({PAYLOAD_BYTES}))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
seconds = time.perf_counter() - began
with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
    for _ in range({DATAGRAMS}):
        datagrams.sendto(b"x" * 100, (sys.argv[1], {PORT}))
        time.sleep(0.0005)
print(round_trip_s, seconds)
"""


def namespaces(pid: int) -> list[str]:
    found = subprocess.run([IP, "netns", "list"], capture_output=True, text=True, check=True).stdout
    return re.findall(rf"thinwire-{pid}-\S+", found)


def exchange(source: Host, destination: Host) -> tuple[float, float, int]:
    """Returns the seconds of a round trip and of the payload, and the number of received datagrams."""
    listen = destination.inside(sys.executable, "-c", LISTEN)
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as listener:
        try:
            assert listener.stdout is not None
            assert listener.stdout.readline() == "listening\n"
            send = source.inside(sys.executable, "-c", SEND, destination.address)
            sent = subprocess.run(send, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
            round_trip_s, seconds = map(float, sent.stdout.split())
            return round_trip_s, seconds, int(listener.stdout.readline())
        finally:
            listener.kill()


def check(hosts: Hosts, link: LinkSpec) -> None:
    source, destination = hosts.nodes
    before = destination.traffic()
    round_trip_s, seconds, datagrams = exchange(source, destination)
    received = destination.traffic().received_bytes - before.received_bytes
    assert round_trip_s >= link.round_trip_ms / 1000
    mbit_s = 8 * PAYLOAD_BYTES / 1e6 / seconds
    assert mbit_s <= RATE_MBIT
    assert received > PAYLOAD_BYTES + 40 * PAYLOAD_BYTES / 1500  # including headers
    assert 0.8 * DATAGRAMS < datagrams < DATAGRAMS  # 5% of them are lost


@pytest.mark.skipif(bool(MACHINE.missing), reason=f"emulating links needs {MACHINE.missing}")
def test_line_has_the_specified_rate_delay_and_loss(tmp_path: Path) -> None:
    link = LinkSpec(RATE_MBIT, ROUND_TRIP_MS, loss=0.05)
    with hosts_behind(link, 2, 1, tmp_path) as hosts:
        assert len(namespaces(os.getpid())) == 4  # hub, coordinator, two nodes
        check(hosts, link)
    assert namespaces(os.getpid()) == []
    report = json.loads((tmp_path / "line.log").read_text().splitlines()[-1])
    assert report["oversize"] == 0  # no offload passes packets above the MTU
    assert 0 < report["up"][1]["lost"] < 0.1 * report["up"][1]["carried"]


@pytest.mark.skipif(bool(MACHINE.missing), reason=f"emulating links needs {MACHINE.missing}")
def test_interrupt_leaves_neither_namespaces_nor_processes(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bench.wide_area", "--seconds", "5"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: list(tmp_path.glob("runs/*/*/control-3.log")), "a process runs on each node")
            assert len(namespaces(process.pid)) == 6
            process.send_signal(signal.SIGINT)
            text, _ = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "everything that was started has ended" in text
    assert namespaces(process.pid) == []
    until(lambda: not commands_with(str(tmp_path)), "all processes have ended")


def commands_with(text: str) -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:  # the process has ended meanwhile
            continue
        if text.encode() in command and int(path.parent.name) != os.getpid():
            found.append(command)
    return found
