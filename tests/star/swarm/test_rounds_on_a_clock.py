"""Repeats scenarios of tests/scenarios with real processes and real sockets, where this is possible."""

from __future__ import annotations

import signal
import sqlite3
from collections import Counter
from pathlib import Path

import msgpack
import pytest
from safetensors import safe_open

import chaos
from deploy.local_swarm.processes import Process
from support.dying import SEALING
from support.real import RealSwarm, ended, run_text, totals, until
from thinwire_coordinator.verify import verify
from thinwire_proto.limits import HEARTBEAT_S, PING_ANSWER_S

CLOCK = 'pace = "clock"\n'


def clock_text(length_ms: int = 1000) -> str:
    return run_text(1_000_000, samples=64, length_ms=length_ms, rounds=CLOCK)


def test_the_heartbeat_detects_a_stopped_node_which_returns_when_resumed(swarm: RealSwarm) -> None:
    """Scenarios 7 and 8: SIGSTOP with an open socket. Rounds do not wait for the node, and it returns after SIGCONT."""
    swarm.coordinator(clock_text())
    nodes = [swarm.node("a"), swarm.node("b")]
    until(lambda: swarm.active() == ["a", "b"] and swarm.counted("b") > 2, "both are counted", *nodes)
    nodes[1].tell(signal.SIGSTOP)
    before = swarm.status().step
    until(lambda: swarm.active() == ["a"], "the heartbeat notices", *nodes)
    assert swarm.status().step - before <= HEARTBEAT_S + PING_ANSWER_S + 5  # one round per second
    nodes[1].tell(signal.SIGCONT)
    counted = swarm.counted("b")
    until(lambda: swarm.counted("b") >= counted + 3, "the node is counted again", *nodes)
    assert swarm.status().fingerprints_different == 0


def pending_on_disk(folder: Path) -> bytes:
    with safe_open(folder / "momentum.safetensors", framework="pt") as file:
        return bytes.fromhex((file.metadata() or {}).get("pending", ""))


@pytest.mark.timeout(600)
def test_a_coordinator_killed_at_any_point_of_sealing_counts_no_contribution_twice(swarm: RealSwarm) -> None:
    """Scenario 16: the coordinator is killed at each crash point in turn, while the same nodes run.

    Each coordinator waits for both nodes. Otherwise one node alone could make a hundred steps while the other pauses
    between attempts. The other node would then have to drop its momentum, and would not ask for its missing receipt.
    """
    both = (run_text(1_000_000), "--wait-for", "2")
    nodes: list[Process] = []
    for point in SEALING:
        dying = swarm.coordinator(*both, through=("dying.py", point, "6"))
        nodes = nodes or [swarm.node("a"), swarm.node("b")]
        assert ended(dying) == -signal.SIGKILL, point
        verify(swarm.state, lambda said: None)  # in this process, because nodes pause longer after each failed attempt
    last = swarm.coordinator(*both)
    until(lambda: min(swarm.counted("a"), swarm.counted("b")) > 2, "both nodes are counted again", *nodes)
    assert swarm.status().fingerprints_different == 0
    names = {node.node_id: node.name for node in swarm.status().nodes}
    for node in nodes:
        node.tell(signal.SIGTERM)
    assert [ended(node) for node in nodes] == [0, 0]
    last.end(10)
    swarm.verify()
    with sqlite3.connect(swarm.state / "ledger.sqlite") as db:
        counted = [msgpack.unpackb(packed) for (packed,) in db.execute("SELECT counted FROM rows")]
    db.close()
    # a node that left before its receipt came has the contribution on disk, and asks for the receipt later
    out = [pending_on_disk(swarm.folder / node.name) for node in nodes]
    in_ledger = Counter(names[entry[0]] for row in counted for entry in row if entry[1] not in out)
    told = {node.name: totals(node)[0] for node in nodes}
    assert told == in_ledger  # nodes and ledger agree on every contribution


def test_the_swarm_survives_half_a_minute_of_chaos(capsys: pytest.CaptureFixture[str]) -> None:
    """Scenario 12. `make chaos` runs for any length of time."""
    chaos.main(["--seed", "1", "--minutes", "0.5"])
    assert "all replicas were equal, and the ledger verifies" in capsys.readouterr().out
