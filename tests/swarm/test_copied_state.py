"""Nodes that run on copies of one state directory, so with one key."""

from __future__ import annotations

import shutil
import signal

from support.real import RealSwarm, ended, run_text, until


def test_of_two_nodes_with_one_key_one_leaves_and_says_why(swarm: RealSwarm) -> None:
    """Else each ended the other's session every second, for ever, and neither said why."""
    swarm.coordinator(run_text(100_000))
    first = swarm.node("first", "--rounds", "1")
    assert ended(first) == 0
    shutil.copytree(swarm.folder / "first", swarm.folder / "copy")
    nodes = [swarm.node(name) for name in ("first", "copy")]
    until(lambda: not all(node.running for node in nodes), "one of two leaves", *nodes)
    (left,) = [node for node in nodes if not node.running]
    (stayed,) = [node for node in nodes if node.running]
    assert left.popen.wait() == 2  # so systemd does not start it again
    (failed,) = left.events("node.failed")
    assert "another process has joined with this node's key" in failed["message"]
    assert "--state-dir" in failed["message"]
    swarm.reached(swarm.status().step + 10)
    stayed.tell(signal.SIGTERM)
    assert ended(stayed) == 0
