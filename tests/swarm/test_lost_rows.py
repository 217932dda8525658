"""Tests that a node detects a ledger that has lost rows, or has others in their place."""

from __future__ import annotations

import signal
import sqlite3

from support.real import RealSwarm, ended, last_fingerprint, run_text


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
