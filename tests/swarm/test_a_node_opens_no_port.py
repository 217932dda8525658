"""A node that takes part listens on no port, and tells no name of its machine, only its id."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from support.real import RealSwarm, real_swarm, run_text, until, without_a_centre

LISTENS = "0A"
"""The state of a listening TCP socket in /proc (include/net/tcp_states.h)."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def listening(pid: int) -> list[str]:
    """The local addresses on which a process and its children listen, or wait for datagrams."""
    own = set()
    for one in (pid, *children(pid)):
        for handle in Path(f"/proc/{one}/fd").iterdir():
            with suppress(OSError):  # it is closed again
                if match := re.fullmatch(r"socket:\[(\d+)\]", str(handle.readlink())):
                    own.add(match[1])
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


def test_a_node_listens_for_its_peers_where_it_is_told_to(tmp_path: Path) -> None:
    run = run_text(100_000, length_ms=500, rounds='pace = "clock"') + without_a_centre(2, 4)
    with real_swarm(tmp_path) as swarm:
        swarm.coordinator(run)
        node, quiet = swarm.node("ada", "--peers", "127.0.0.1:0"), swarm.node("quiet")
        until(lambda: node.events("node.listening"), "the node listens", node, quiet)
        until(lambda: quiet.events("node.peer_direct"), "the other one connects", node, quiet)
        (told,) = node.events("node.listening")
        (port,) = listening(node.popen.pid)
        assert port.endswith(f"0100007F:{told['port']:04X}")  # 127.0.0.1, as an IPv4 or IPv6 socket
        assert listening(quiet.popen.pid) == []
