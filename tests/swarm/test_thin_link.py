"""Tests scenario 20 on an emulated link: a newcomer behind 10 Mbit/s and 100 ms catches up while the swarm advances."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.wide_area.hosts import Host, LinkSpec, hosts_behind
from bench.wide_area.needs import check_emulation
from bench.wide_area.programs import START_S, Programs
from deploy.local_swarm.processes import BIN, JSON_LOG, Process
from support.real import RESTING, run_text, until

MACHINE = check_emulation()
BEHIND = 20
"""Minimum number of updates that the newcomer must catch up with."""
ASK = """
import json, sys, time
from thinwire_coordinator.cli.status_client import open_channel
from thinwire_proto.wire.service_pb2 import StatusRequest
from thinwire_proto.wire.service_pb2_grpc import SwarmStub
invite, name, counted, step = sys.argv[1:]
stub = SwarmStub(open_channel(invite))
while True:
    status = stub.Status(StatusRequest(), timeout=10)
    if status.step >= int(step) and any(n.name == name and n.counted >= int(counted) for n in status.nodes):
        break
    time.sleep(0.1)
print(json.dumps({"step": status.step, "different": status.fingerprints_different}))
"""


def when(programs: Programs, host: Host, invite: str, name: str, *, counted: int = 0, step: int = 0) -> dict[str, int]:
    """Wait until a node has been counted `counted` times and `step` steps are sealed, and return the status.

    One process polls. A new process for each request would use more processor time than the swarm itself.
    """
    command = host.inside(str(BIN / "python"), "-c", ASK, invite, name, str(counted), str(step))
    asking = programs.start(f"ask-{name}-{counted}-{step}", command)
    until(lambda: not asking.running, f"{name} is counted {counted} times, and step {step}", asking, *programs.all)
    found: dict[str, int] = json.loads(asking.text())
    return found


@pytest.mark.skipif(bool(MACHINE.missing), reason=f"emulating links needs {MACHINE.missing}")
def test_a_newcomer_behind_a_thin_link_catches_up_while_the_swarm_advances(tmp_path: Path) -> None:
    text = run_text(1_000_000, samples=64, length_ms=500, rounds='pace = "clock"')
    (tmp_path / "RUN.toml").write_text(text)
    with hosts_behind(LinkSpec(10, 100, 0.01), 2, False, 1, tmp_path) as hosts, Programs(tmp_path) as programs:
        address = f"{hosts.coordinator.address}:7700"
        serve = [str(BIN / "thinwire-coordinator"), "serve", "--run", str(tmp_path / "RUN.toml"), "--listen", address]
        serve += ["--state-dir", str(tmp_path / "coordinator"), "--invite-file", str(tmp_path / "invite")]
        coordinator = programs.start("coordinator", hosts.coordinator.inside(*serve))
        coordinator.wait_until_ready(tmp_path / "coordinator", START_S)

        def start(name: str, host: Host) -> Process:
            command = [str(BIN / "thinwire-node"), "start", f"@{tmp_path / 'invite'}", "--name", name, *JSON_LOG]
            command += [*RESTING, "--threads", "1", "--state-dir", str(tmp_path / name)]
            return programs.start(name, host.inside(*command))

        start("old", hosts.nodes[0])
        begun = when(programs, hosts.coordinator, f"@{tmp_path / 'invite'}", "old", counted=6, step=BEHIND)
        newcomer = start("new", hosts.nodes[1])
        first = when(programs, hosts.coordinator, f"@{tmp_path / 'invite'}", "new", counted=1)
        assert first["step"] > begun["step"]  # the swarm did not wait for the newcomer
        last = when(programs, hosts.coordinator, f"@{tmp_path / 'invite'}", "new", counted=6)
        assert last["different"] == 0
        (fetched,) = newcomer.events("node.snapshot_fetched")
        assert begun["step"] - fetched["step"] >= BEHIND
        assert not newcomer.events("node.failed")  # logged if the link is too slow to catch up
