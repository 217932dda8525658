"""Tests SIGKILL and other interruptions: other processes continue, no sealed step is lost, and a restarted process
catches up."""

from __future__ import annotations

import signal
import sqlite3

from deploy.local_swarm.processes import Process
from support.real import RealSwarm, ended, last_fingerprint, run_text, totals, until


def test_the_swarm_continues_without_a_killed_node_which_catches_up_later(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(100_000))
    others = [swarm.node("a"), swarm.node("b")]
    victim = swarm.node("victim")
    until(
        lambda: any(n.name == "victim" and n.counted > 3 for n in swarm.status().nodes), "the node is counted", victim
    )
    victim.tell(signal.SIGKILL)
    ended(victim)
    killed_at = swarm.status().step
    swarm.reached(killed_at + 20)
    assert all(other.running for other in others)

    again = swarm.node("victim", "--rounds", "5")
    assert ended(again) == 0
    counted, not_counted = totals(again)
    assert counted == 5
    assert not_counted <= 1  # the round that it found open may end before its votes arrive
    step, _ = last_fingerprint(again)
    assert step > killed_at + 20
    assert swarm.status().fingerprints_different == 0


def failures_to_join(node: Process) -> int:
    return sum(not event["joined"] for event in node.events("node.no_session"))


def test_a_killed_coordinator_loses_no_sealed_step_and_nodes_reconnect(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(run_text(100_000))
    nodes = [swarm.node("a"), swarm.node("b")]
    sealed = 0
    for life in range(1, 4):
        swarm.reached(sealed + 15)
        sealed = swarm.status().step
        before = max(map(failures_to_join, nodes))
        coordinator.tell(signal.SIGKILL)
        ended(coordinator)
        swarm.verify()
        until(lambda: min(map(failures_to_join, nodes)) > before, "each node to find nobody", *nodes)  # noqa: B023
        coordinator = swarm.coordinator()  # the same state directory and the same port
        status = swarm.status()
        assert status.step >= sealed
        assert status.term == life + 1
    swarm.reached(sealed + 15)
    assert all(node.running for node in nodes)
    for node in nodes:
        node.tell(signal.SIGTERM)
    assert [ended(node) for node in nodes] == [0, 0]
    assert swarm.status().fingerprints_different == 0
    for node in nodes:
        assert not node.events("node.resync")
    coordinator.end(10)
    verified = swarm.verify()
    # each contribution is in at most one update
    with sqlite3.connect(swarm.state / "ledger.sqlite") as db:
        (counted,) = db.execute("SELECT count(*) FROM contributions").fetchone()
    db.close()
    assert f"{counted:,} contributions" in verified


def test_a_node_detects_that_the_ledger_has_lost_rows_that_it_has_seen(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(run_text(100_000))
    node = swarm.node("witness")
    swarm.reached(15)
    coordinator.end(10)
    with sqlite3.connect(swarm.state / "ledger.sqlite") as db:
        db.execute("DELETE FROM rows WHERE step >= 10")
        db.execute("DELETE FROM contributions WHERE step >= 10")
    db.close()
    restored = swarm.coordinator()
    assert ended(node) == 1
    assert "this coordinator's ledger ends at step 10, but the node has seen step" in node.text()
    # the organizer, who alone can mend it, is told too
    assert restored.events("coordinator.join_refused")[0]["refusal"] == "other_ledger"
    # a restarted node detects it too, from its state on disk
    again = swarm.node("witness")
    assert ended(again) == 1
    assert "the ledger has lost rows" in again.text()


def test_a_node_detects_rows_that_were_lost_and_replaced(swarm: RealSwarm) -> None:
    """After the loss, a node that had not seen the rows helped to seal others at the same steps."""
    coordinator = swarm.coordinator(run_text(100_000))
    witness = swarm.node("witness")
    swarm.reached(15)
    witness.tell(signal.SIGTERM)
    ended(witness)
    seen, _ = last_fingerprint(witness)
    coordinator.end(10)
    with sqlite3.connect(swarm.state / "ledger.sqlite") as db:
        db.execute("DELETE FROM rows WHERE step >= 5")
        db.execute("DELETE FROM contributions WHERE step >= 5")
    db.close()
    swarm.coordinator()
    swarm.node("innocent")
    swarm.reached(seen + 20)
    again = swarm.node("witness")
    assert ended(again) == 1
    assert "they are two lineages" in again.text()
