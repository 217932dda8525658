"""A node that takes part listens on no port, and tells no name of its machine, only its id."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from support.real import RealSwarm, run_text, until

LISTENS = "0A"
"""The state of a listening TCP socket in /proc (include/net/tcp_states.h)."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def listening(pid: int) -> list[str]:
    """The local addresses on which a process and its children listen, or wait for datagrams."""
    pids = [pid, *children(pid)]
    own = {
        match[1]
        for one in pids
        for handle in Path(f"/proc/{one}/fd").iterdir()
        if (match := re.fullmatch(r"socket:\[(\d+)\]", str(handle.readlink() if handle.is_symlink() else "")))
    }
    found = []
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in own and (fields[3] == LISTENS or name.startswith("udp")):
                found.append(f"{name} {fields[1]}")
    return found


def children(pid: int) -> list[int]:
    found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found + [grandchild for child in found for grandchild in children(child)]


def test_a_node_listens_on_no_port_unless_metrics_are_asked_for(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(10_000))
    command = ["thinwire-node", "start", swarm.invitation, "--state-dir", str(swarm.folder / "quiet"), "--threads", "1"]
    quiet = swarm.start("quiet", *command, "--log-format", "json")
    told = swarm.node("told", "--metrics", "0")
    until(lambda: len(swarm.active()) == 2, "both nodes take part", quiet, told)
    until(lambda: quiet.events("node.joined") and told.events("node.joined"), "both have joined", quiet, told)
    assert listening(quiet.popen.pid) == []
    ports = listening(told.popen.pid)
    assert len(ports) == 1
    assert ports[0].startswith("tcp 0100007F:")  # 127.0.0.1
    (joined,) = quiet.events("node.joined")
    assert joined["name"] == joined["node_id"][:8]
