"""The scenarios of tests/scenarios once more, where real processes on real sockets can play them."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgpack
import pytest
from safetensors import safe_open

from deploy.local_swarm.processes import Process
from support.dying_coordinator import POINTS, SENT
from support.modules import beside_the_tests
from support.real import RealSwarm, ended, last_fingerprint, run_text, totals, until
from thinwire_coordinator.ledger.verify import verify
from thinwire_proto.limits import LOST_AFTER_S

ROOT = Path(__file__).parents[2]
CLOCK = 'pace = "clock"\n'


def clock_text(length_ms: int = 1000) -> str:
    text = run_text(1_000_000, rounds=CLOCK)
    return text.replace("length_ms = 5000", f"length_ms = {length_ms}").replace("samples = 4", "samples = 64")


def test_on_a_clock_nobody_waits_and_all_are_counted_in_every_round(swarm: RealSwarm) -> None:
    """Scenarios 1 and 3: two nodes; a third joins at round 2; each trains on while its contribution travels."""
    swarm.coordinator(clock_text(), "--wait-for", "2")
    nodes = [swarm.node("a"), swarm.node("b")]
    swarm.reached(2)
    nodes.append(swarm.node("c"))
    until(lambda: swarm.counted("c") >= 5, "the third is counted", *nodes)
    status = swarm.status()
    assert status.fingerprints_different == 0
    assert status.rounds_void == 0
    for node in nodes:
        node.tell(signal.SIGTERM)
    assert [ended(node) for node in nodes] == [0, 0, 0]
    assert not any(node.events("node.slept") or node.events("node.clock_jump") for node in nodes)
    swarm.verify()


def test_a_node_that_raises_is_one_failure_and_heals(swarm: RealSwarm) -> None:
    """Scenario 2."""
    swarm.coordinator(clock_text())
    other = swarm.node("other")
    swarm.reached(2)
    raising = swarm.node("raising", through=("raising_node.py",))
    assert ended(raising) == 1
    assert "the device fell off the bus" in raising.text()
    again = swarm.node("raising")
    until(lambda: swarm.counted("raising") >= 5, "it is counted again", again)
    status = swarm.status()
    assert {node.name: node.lost for node in status.nodes} == {"other": 0, "raising": 1}
    assert status.fingerprints_different == 0
    assert other.running


def test_a_part_of_an_upload_is_dropped_whole(swarm: RealSwarm) -> None:
    """Scenario 6."""
    swarm.coordinator(clock_text())
    swarm.node("other")
    swarm.reached(2)
    half = swarm.node("half", through=("half_an_upload.py",))
    assert ended(half) == -signal.SIGKILL
    assert swarm.counted("half") == 0
    again = swarm.node("half")
    until(lambda: swarm.counted("half") >= 3, "it is counted", again)
    assert swarm.status().fingerprints_different == 0


def test_a_stopped_node_is_noticed_by_the_heartbeat_and_comes_back(swarm: RealSwarm) -> None:
    """Scenarios 7 and 8: SIGSTOP with the socket open. The rounds do not wait for it; when it goes on, it comes
    back."""
    swarm.coordinator(clock_text())
    nodes = [swarm.node("a"), swarm.node("b")]
    until(lambda: swarm.active() == ["a", "b"] and swarm.counted("b") > 2, "both are counted", *nodes)
    nodes[1].tell(signal.SIGSTOP)
    before = swarm.status().step
    until(lambda: swarm.active() == ["a"], "the heartbeat notices", *nodes)
    assert swarm.status().step - before <= LOST_AFTER_S + 5  # a round a second
    nodes[1].tell(signal.SIGCONT)
    counted = swarm.counted("b")
    until(lambda: swarm.counted("b") >= counted + 3, "it is counted again", *nodes)
    assert swarm.status().fingerprints_different == 0


def test_nodes_that_are_there_before_the_coordinator_wait_for_it(swarm: RealSwarm) -> None:
    """Scenario 17."""
    coordinator = swarm.coordinator(clock_text())
    coordinator.end(10)
    node = swarm.node("early")
    until(lambda: len(node.events("node.no_session")) >= 2, "it has tried twice", node)
    swarm.coordinator()
    until(lambda: swarm.counted("early") >= 3, "it is counted", node)


def pending_on_disk(folder: Path) -> bytes:
    with safe_open(folder / "momentum.safetensors", framework="pt") as file:
        return bytes.fromhex((file.metadata() or {}).get("pending", ""))


def rows(swarm: RealSwarm) -> int:
    with sqlite3.connect(swarm.state / "ledger.sqlite") as db:
        (count,) = db.execute("SELECT count(*) FROM rows").fetchone()
    db.close()
    return int(count)


def heads_on_disk(folder: Path) -> set[int]:
    """Of all nodes: the newest step that each has seen sealed."""
    return {json.loads(path.read_text())["step"] for path in folder.glob("*/head.json")}


def test_a_coordinator_killed_at_any_point_of_sealing_counts_everybody_once_or_not_at_all(swarm: RealSwarm) -> None:
    """Scenario 16: at every step, in one swarm whose nodes live through all of it.

    Each coordinator waits for both. One node alone makes a hundred steps while the other pauses before it tries again;
    that one is then told to drop its momentum, and does not ask for the receipt that is out."""
    both = (run_text(1_000_000), "--wait-for", "2")
    nodes: list[Process] = []
    for point in POINTS:
        dying = swarm.coordinator(*both, through=("dying_coordinator.py", point, "6"))
        nodes = nodes or [swarm.node("a"), swarm.node("b")]
        assert ended(dying) == -signal.SIGKILL, point
        verify(swarm.state, lambda said: None)  # here, since nodes pause longer and longer while nobody is there
        if point in SENT:
            until(lambda: rows(swarm) in heads_on_disk(swarm.folder), "somebody has the update of the last row", *nodes)
    last = swarm.coordinator(*both)
    until(lambda: min(swarm.counted("a"), swarm.counted("b")) > 2, "both are back, and have asked", *nodes)
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
    # whose receipt did not come while it left has it on disk, and will ask
    out = [pending_on_disk(swarm.folder / node.name) for node in nodes]
    in_ledger = Counter(names[entry[0]] for row in counted for entry in row if entry[1] not in out)
    told = {node.name: totals(node)[0] for node in nodes}
    assert told == in_ledger  # both sides say the same of every contribution


def test_a_killed_node_takes_up_what_it_saved_at_its_last_cut(swarm: RealSwarm) -> None:
    """Its momentum is on disk once a round; whatever was counted since that would be counted twice is dropped."""
    swarm.coordinator(clock_text(500))
    node = swarm.node("a")
    until(lambda: swarm.counted("a") > 6, "it is counted", node)
    node.tell(signal.SIGKILL)
    ended(node)
    again = swarm.node("a")
    until(lambda: swarm.counted("a") > 12, "it is counted again", again)
    assert again.events("node.momentum_taken_up") or again.events("node.momentum_dropped")
    again.tell(signal.SIGTERM)
    assert ended(again) == 0
    assert last_fingerprint(again)[0] > 12
    assert swarm.status().fingerprints_different == 0


def test_half_a_minute_of_chaos() -> None:
    """Scenario 12; `make chaos` does it for as long as one likes."""
    command = [sys.executable, "-m", "chaos", "--seed", "1", "--minutes", "0.5"]
    done = subprocess.run(
        command, cwd=ROOT, env=beside_the_tests(), capture_output=True, text=True, check=False, timeout=170
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every replica was equal, and the ledger verifies" in done.stdout


def test_chaos_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A swarm that does not go on is noticed."""
    import chaos as module  # noqa: PLC0415 - only here

    monkeypatch.setattr(module, "STANDSTILL_S", 0.0)
    chaos = module.Chaos(tmp_path, random.Random(1))
    try:
        with pytest.raises(module.Failed, match="no step after"):
            module.run(chaos, 60)
    finally:
        chaos.kill_all()
