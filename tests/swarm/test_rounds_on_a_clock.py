"""Repeats scenarios of tests/scenarios with real processes and real sockets, where this is possible."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
from collections import Counter
from pathlib import Path

import msgpack
import pytest
from safetensors import safe_open

import chaos
from deploy.local_swarm.processes import Process
from support.dying_coordinator import POINTS, SENT
from support.real import RealSwarm, ended, last_fingerprint, run_text, start_quickly, totals, until
from thinwire_coordinator.verify import verify
from thinwire_node.observe import status
from thinwire_proto.limits import HEARTBEAT_S, PING_ANSWER_S

CLOCK = 'pace = "clock"\n'


def clock_text(length_ms: int = 1000) -> str:
    return run_text(1_000_000, samples=64, length_ms=length_ms, rounds=CLOCK)


def step_of(swarm: RealSwarm, name: str) -> int:
    """The step of a node's replica, as it writes it every two seconds for `thinwire-node status`."""
    return status.read(swarm.folder / name).place.step or 0


def test_on_a_clock_all_nodes_are_counted_without_void_rounds(swarm: RealSwarm) -> None:
    """Scenarios 1 and 3: a third node joins two others at step 2. Nodes train while contributions are in flight.

    A round is longer than a busy machine keeps three processes from its cores."""
    swarm.coordinator(clock_text(2000), "--wait-for", "2")
    nodes = [swarm.node("a"), swarm.node("b")]
    swarm.reached(2)
    nodes.append(swarm.node("c"))
    until(lambda: swarm.counted("c") >= 5, "the third node is counted", *nodes)
    status = swarm.status()
    assert status.fingerprints_different == 0
    assert status.rounds_void == 0, [node.tail(30) for node in nodes]
    for node in nodes:
        node.tell(signal.SIGTERM)
    assert [ended(node) for node in nodes] == [0, 0, 0]
    assert not any(node.events("node.slept") or node.events("node.clock_jump") for node in nodes)
    swarm.verify()


def test_a_node_that_crashes_is_lost_once_and_can_return(swarm: RealSwarm) -> None:
    """Scenario 2."""
    swarm.coordinator(clock_text())
    other = swarm.node("other")
    swarm.reached(2)
    raising = swarm.node("raising", through=("raising_node.py",))
    assert ended(raising) == 1
    assert "the device fell off the bus" in raising.text()
    again = swarm.node("raising")
    until(lambda: swarm.counted("raising") >= 5, "the node is counted again", again)
    status = swarm.status()
    assert {node.name: node.lost for node in status.nodes} == {"other": 0, "raising": 1}
    assert status.fingerprints_different == 0
    assert other.running


def test_an_incomplete_upload_is_dropped(swarm: RealSwarm) -> None:
    """Scenario 6."""
    swarm.coordinator(clock_text())
    swarm.node("other")
    swarm.reached(2)
    half = swarm.node("half", through=("half_an_upload.py",))
    assert ended(half) == -signal.SIGKILL
    swarm.reached(swarm.status().step + 2)  # it would be counted at the end of its round
    assert swarm.counted("half") == 0
    again = swarm.node("half")
    until(lambda: swarm.counted("half") >= 3, "the node is counted", again)
    assert swarm.status().fingerprints_different == 0


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


def test_nodes_that_start_before_the_coordinator_wait_for_it(swarm: RealSwarm) -> None:
    """Scenario 17."""
    coordinator = swarm.coordinator(clock_text())
    coordinator.end(10)
    node = swarm.node("early")
    until(lambda: len(node.events("node.no_session")) >= 2, "the node has tried twice", node)
    swarm.coordinator()
    until(lambda: swarm.counted("early") >= 3, "the node is counted", node)


def pending_on_disk(folder: Path) -> bytes:
    with safe_open(folder / "momentum.safetensors", framework="pt") as file:
        return bytes.fromhex((file.metadata() or {}).get("pending", ""))


def rows(swarm: RealSwarm) -> int:
    with sqlite3.connect(swarm.state / "ledger.sqlite") as db:
        (count,) = db.execute("SELECT count(*) FROM rows").fetchone()
    db.close()
    return int(count)


def heads_on_disk(folder: Path) -> set[int]:
    """The newest sealed steps that the nodes have recorded on disk."""
    return {json.loads(path.read_text())["step"] for path in folder.glob("*/head.json")}


@pytest.mark.timeout(600)
def test_a_coordinator_killed_at_any_point_of_sealing_counts_no_contribution_twice(swarm: RealSwarm) -> None:
    """Scenario 16: the coordinator is killed at each crash point in turn, while the same nodes run.

    Each coordinator waits for both nodes. Otherwise one node alone could make a hundred steps while the other pauses
    between attempts. The other node would then have to drop its momentum, and would not ask for its missing receipt.
    """
    both = (run_text(1_000_000), "--wait-for", "2")
    nodes: list[Process] = []
    for point in POINTS:
        dying = swarm.coordinator(*both, through=("dying_coordinator.py", point, "6"))
        nodes = nodes or [swarm.node("a"), swarm.node("b")]
        assert ended(dying) == -signal.SIGKILL, point
        verify(swarm.state, lambda said: None)  # in this process, because nodes pause longer after each failed attempt
        if point in SENT:
            until(lambda: rows(swarm) in heads_on_disk(swarm.folder), "a node has the update of the last row", *nodes)
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


def test_a_killed_node_restores_the_momentum_of_its_last_extraction(swarm: RealSwarm) -> None:
    """A node saves its momentum once a round. It drops the parts that have been counted since, so that nothing counts
    twice."""
    swarm.coordinator(clock_text(500))
    node = swarm.node("a")
    until(lambda: swarm.counted("a") > 6, "the node is counted", node)
    node.tell(signal.SIGKILL)
    ended(node)
    again = swarm.node("a")
    until(lambda: swarm.counted("a") > 12, "the node is counted again", again)
    until(lambda: step_of(swarm, "a") > 12, "the update reaches its replica", again)
    assert again.events("node.momentum_taken_up") or again.events("node.momentum_dropped")
    again.tell(signal.SIGTERM)
    assert ended(again) == 0
    assert last_fingerprint(again)[0] > 12
    assert swarm.status().fingerprints_different == 0


def test_the_swarm_survives_half_a_minute_of_chaos(capsys: pytest.CaptureFixture[str]) -> None:
    """Scenario 12. `make chaos` runs for any length of time."""
    chaos.main(["--seed", "1", "--minutes", "0.5"], start_quickly)
    assert "all replicas were equal, and the ledger verifies" in capsys.readouterr().out


def test_chaos_detects_a_swarm_without_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "STANDSTILL_S", 0.0)
    found = chaos.Chaos(tmp_path, random.Random(1), start_program=start_quickly)
    try:
        with pytest.raises(chaos.Failed, match="no step after"):
            chaos.run(found, 60)
    finally:
        found.kill_all()
