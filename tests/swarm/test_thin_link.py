"""Nodes on emulated links: scenario 20, a newcomer that catches up while the swarm advances, and a thin line up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.wide_area.hosts import Host, Hosts, LinkSpec, hosts_behind
from bench.wide_area.line import LineQuality
from bench.wide_area.needs import check_emulation
from bench.wide_area.programs import START_S, Programs
from deploy.local_swarm.processes import BIN, JSON_LOG, Process
from support.real import LONG_MS, RESTING, ended, run_text, until
from thinwire_proto.limits import FIRST_MESSAGE_S

MACHINE = check_emulation()
THIN_MBIT = 0.04
"""The rate of the thin line up."""
INVITE = "invite"
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


def coordinator_of(text: str, hosts: Hosts, programs: Programs, folder: Path) -> Process:
    """A coordinator that is ready, with its invite in a file of the folder."""
    (folder / "RUN.toml").write_text(text)
    command = [str(BIN / "thinwire-coordinator"), "serve", "--run", str(folder / "RUN.toml")]
    command += ["--listen", f"{hosts.coordinator.address}:7700", "--state-dir", str(folder / "coordinator")]
    coordinator = programs.start(
        "coordinator", hosts.coordinator.inside(*command, "--invite-file", str(folder / INVITE))
    )
    coordinator.wait_until_ready(folder / "coordinator", START_S)
    return coordinator


def node_on(host: Host, name: str, programs: Programs, folder: Path, *more: str) -> Process:
    command = [str(BIN / "thinwire-node"), "start", f"@{folder / INVITE}", "--name", name, *JSON_LOG, *more]
    return programs.start(name, host.inside(*command, "--threads", "1", "--state-dir", str(folder / name)))


@pytest.mark.skipif(bool(MACHINE.missing), reason=f"emulating links needs {MACHINE.missing}")
def test_a_newcomer_behind_a_thin_link_catches_up_while_the_swarm_advances(tmp_path: Path) -> None:
    text = run_text(1_000_000, samples=64, length_ms=500, rounds='pace = "clock"')
    with hosts_behind(LinkSpec(10, 100, 0.01), 2, False, 1, tmp_path) as hosts, Programs(tmp_path) as programs:
        coordinator_of(text, hosts, programs, tmp_path)
        invite = f"@{tmp_path / INVITE}"
        node_on(hosts.nodes[0], "old", programs, tmp_path, *RESTING)
        begun = when(programs, hosts.coordinator, invite, "old", counted=6, step=BEHIND)
        newcomer = node_on(hosts.nodes[1], "new", programs, tmp_path, *RESTING)
        first = when(programs, hosts.coordinator, invite, "new", counted=1)
        assert first["step"] > begun["step"]  # the swarm did not wait for the newcomer
        last = when(programs, hosts.coordinator, invite, "new", counted=6)
        assert last["different"] == 0
        (fetched,) = newcomer.events("node.snapshot_fetched")
        assert begun["step"] - fetched["step"] >= BEHIND
        assert not newcomer.events("node.failed")  # logged if the link is too slow to catch up


@pytest.mark.skipif(bool(MACHINE.missing), reason=f"emulating links needs {MACHINE.missing}")
def test_a_contribution_that_takes_longer_than_a_call_s_first_message_may_is_counted(tmp_path: Path) -> None:
    """The answers to pings come behind the contribution."""
    text = run_text(1_000_000, width=256, hidden=512, samples=1, length_ms=LONG_MS)
    thin = LineQuality(rate_mbit=THIN_MBIT, delay_ms=25, loss=0.0, queue_bytes=32_000)
    link = LinkSpec(10, 100, 0.0)
    with hosts_behind(link, 1, False, 1, tmp_path, last_up=thin) as hosts, Programs(tmp_path) as programs:
        coordinator_of(f"{text}[demo]\nk = 500\n", hosts, programs, tmp_path)
        node = node_on(hosts.nodes[0], "thin", programs, tmp_path, "--rounds", "1")
        assert ended(node) == 0, node.tail(20)
        (totals,) = node.events("node.totals")
        assert totals["counted"] == 1
        assert 8 * totals["sent_bytes"] / (1e6 * THIN_MBIT) > FIRST_MESSAGE_S
        assert not node.events("node.no_session")
