"""Scenario 20 on a real link: a newcomer behind 10 Mbit/s and 100 ms catches up while the swarm advances."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from deploy.local_swarm.processes import BIN
from deploy.wan.hosts import Host, Link, hosts_behind
from deploy.wan.needs import look_at_machine
from deploy.wan.programs import Programs
from support.real import run_text, until

MACHINE = look_at_machine()
ASK = """
import json, sys, grpc
from thinwire_proto.service_pb2 import StatusRequest
from thinwire_proto.service_pb2_grpc import SwarmStub
status = SwarmStub(grpc.insecure_channel(sys.argv[1])).Status(StatusRequest(), timeout=10)
print(json.dumps({"step": status.step, "different": status.fingerprints_different,
                  "counted": {node.name: node.counted for node in status.nodes}}))
"""


def status(host: Host, address: str) -> dict[str, object]:
    command = host.inside(str(BIN / "python"), "-c", ASK, address)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(bool(MACHINE.missing), reason=f"emulating links needs {MACHINE.missing}")
def test_a_newcomer_behind_a_thin_link_catches_up_while_the_swarm_advances(tmp_path: Path) -> None:
    text = run_text(1_000_000, rounds='pace = "clock"\n').replace("length_ms = 5000", "length_ms = 500")
    (tmp_path / "RUN.toml").write_text(text.replace("samples = 4", "samples = 64"))
    with hosts_behind(Link(10, 100, 0.01), 2, False, 1, tmp_path) as hosts, Programs(tmp_path) as programs:
        address = f"{hosts.coordinator.address}:7700"
        serve = [str(BIN / "thinwire-coordinator"), "serve", "--run", str(tmp_path / "RUN.toml"), "--listen", address]
        serve += ["--state-dir", str(tmp_path / "coordinator")]
        coordinator = programs.start("coordinator", hosts.coordinator.inside(*serve))
        programs.wait_for(coordinator, "listening on")
        nodes = []
        for name, host in zip(("old", "new"), hosts.nodes, strict=True):
            start = [str(BIN / "thinwire-node"), "start", address, "--name", name, "--threads", "1"]
            nodes.append(programs.start(name, host.inside(*start, "--state-dir", str(tmp_path / name))))
            until(lambda: status(hosts.coordinator, address)["counted"].get(name, 0) >= 6, name, *nodes)  # type: ignore[attr-defined]  # noqa: B023 - called at once
        found = status(hosts.coordinator, address)
        assert found["different"] == 0
        assert "catch up" not in nodes[1].text()
