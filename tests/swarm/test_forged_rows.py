"""Tests that a node refuses a row that another coordinator signed, says so, and goes on with the genuine one."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

from support.real import RealSwarm, ended, run_text, until
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey

FORGED = 2
"""The step whose row is forged."""


def test_a_forged_row_is_refused_until_the_genuine_one_comes(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(run_text(60))
    first = swarm.node("first", "--rounds", "4")
    assert ended(first) == 0
    coordinator.tell(signal.SIGTERM)
    ended(coordinator)
    with closing(sqlite3.connect(swarm.state / "ledger.sqlite")) as db:
        query = "SELECT hash, signature FROM rows WHERE step = ?"
        name, genuine = db.execute(query, (FORGED,)).fetchone()
        forged = SecretKey().sign(statements.row(name))
        db.execute("UPDATE rows SET signature = ? WHERE step = ?", (forged, FORGED))
        db.commit()

    swarm.coordinator()
    second = swarm.node("second")
    until(lambda: len(second.events("node.row_refused")) >= 2, "the node has tried twice", second)
    for event in second.events("node.row_refused"):
        assert event["reason"] == f"the row of step {FORGED} is not signed by this coordinator's key"
    assert second.events("node.retrying")
    assert swarm.active() == [], "a node that has not caught up takes no part"
    with closing(sqlite3.connect(swarm.state / "ledger.sqlite")) as db:
        db.execute("UPDATE rows SET signature = ? WHERE step = ?", (genuine, FORGED))
        db.commit()
    until(lambda: swarm.counted("second"), "the node is counted", second)
    assert swarm.command("verify", "--invite", f"@{swarm.invite_file}").returncode == 0
    assert swarm.status().fingerprints_different == 0
