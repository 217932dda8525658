"""Tests that a node goes on from what it has saved with another number of processes, and that it ends as a whole."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from deploy.local_swarm.processes import Process
from support.real import LONG_MS, RealSwarm, ended, run_text, until

LOCAL = """
[rule]
kind = "{}"
micro_batch = 4
[demo]
beta = 0.95
"""
MUON = """
[rule]
kind = "merged_muon"
"""


def followers(leader: Process) -> list[int]:
    """The process ids of a leader's followers."""
    return [int(pid) for pid in Path(f"/proc/{leader.popen.pid}/task/{leader.popen.pid}/children").read_text().split()]


def counted_more(swarm: RealSwarm, more: int, *nodes: Process) -> None:
    goal = swarm.counted("site") + more
    until(lambda: swarm.counted("site") >= goal, f"{more} more contributions are counted", *nodes)


def checked(swarm: RealSwarm) -> None:
    status = swarm.status(fingerprint=True)
    assert status.fingerprints_compared > 0
    assert status.fingerprints_different == 0
    assert f"fingerprint {status.fingerprint:016x}" in swarm.verify()


@pytest.mark.parametrize(
    "rounds",
    [LOCAL.format("local_muon"), MUON],
    ids=["local_muon", "merged_muon"],
)
def test_a_node_goes_on_with_another_number_of_processes(swarm: RealSwarm, rounds: str) -> None:
    swarm.coordinator(run_text(100_000, length_ms=LONG_MS, samples=8, rounds=rounds))
    for number, ranks in enumerate((4, 2, 3, 1)):
        node = swarm.node("site", "--device", f"cpu*{ranks}")
        counted_more(swarm, 4, node)
        node.tell(signal.SIGTERM)
        assert ended(node) == 0
        assert len(node.events("node.momentum_taken_up")) == (number > 0)
        assert not node.events("node.momentum_dropped")
        assert not node.events("node.resync")
    checked(swarm)


def test_a_follower_that_dies_ends_the_node_with_one_sentence(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(100_000, length_ms=LONG_MS))
    node = swarm.node("site", "--device", "cpu*3")
    counted_more(swarm, 3, node)
    pids = followers(node)
    os.kill(pids[1], signal.SIGKILL)
    assert ended(node) == 1
    (failed,) = node.events("node.failed")
    assert "another one has ended" in failed["message"]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the others end too")
    again = swarm.node("site", "--device", "cpu*2")
    counted_more(swarm, 3, again)
    again.tell(signal.SIGTERM)
    assert ended(again) == 0
    checked(swarm)


def test_followers_end_with_a_leader_that_is_killed(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(100_000, length_ms=LONG_MS))
    node = swarm.node("site", "--device", "cpu*3")
    counted_more(swarm, 3, node)
    pids = followers(node)
    node.popen.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the followers end")
    again = swarm.node("site")
    counted_more(swarm, 3, again)
    again.tell(signal.SIGTERM)
    assert ended(again) == 0
    checked(swarm)
