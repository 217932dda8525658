"""A standby on a second machine takes over, with real processes: see also `make failovers`."""

from __future__ import annotations

import random
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from deploy.local_swarm.processes import SwarmError
from failovers import NODES, OPTIONS, Failovers, rows_of
from support.real import PATIENCE_S, ended, real_swarm, until


def test_the_second_machine_takes_over_with_pause_and_amendments_and_ends_the_first(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        made = Failovers(swarm, random.Random(1))
        made.begin()
        first, second = made.leader, made.standby
        swarm.command("amend", "--set", "schedule.learning_rate=0.001")
        until(lambda: swarm.command("amend").stdout.count("0.001"), "the amendment is in force", first.process)
        swarm.command("pause", "--because", "the first machine smells of smoke")

        def has_pause() -> int:
            with closing(sqlite3.connect(second.state / "access.sqlite")) as db:
                return len(db.execute("SELECT 1 FROM settings WHERE value LIKE '%smoke%'").fetchall())

        until(has_pause, "the standby has the pause", second.process)
        for process in (first.process, *made.nodes):
            process.tell(signal.SIGKILL)
            process.popen.wait()
        lost = rows_of(first.state)

        swarm.hang_up()
        swarm.state, swarm.address = second.state, second.address
        told = swarm.command("promote")
        assert "is the coordinator of its run from term 1,000,000 on" in told.stdout, told.stderr
        second.process.wait_until_ready(second.state, PATIENCE_S)
        made.check(lost, rows_of(second.state))
        assert "smoke" in swarm.status().state
        assert "0.001" in swarm.command("amend").stdout
        made.leader = second
        made.standby = made.new_standby()
        assert swarm.command("resume").returncode == 0
        made.nodes = [swarm.node(f"node-{number}") for number in range(NODES)]  # which have the second address on disk
        swarm.reached(len(lost) + 2)
        swarm.verify()

        # the first machine comes back on its old disk: it is told, and does not start again
        step = swarm.status().step
        swarm.hang_up()
        swarm.state, swarm.address = first.state, first.address
        again = swarm.coordinator(None, *OPTIONS)
        assert ended(again) == 1
        assert "another machine was promoted to be the coordinator of this run (term 1,000,000)" in again.text()
        with pytest.raises(SwarmError, match="another machine was promoted"):
            swarm.coordinator(None, *OPTIONS)
        swarm.hang_up()
        swarm.state, swarm.address = second.state, second.address
        swarm.reached(step + 2)
        assert not [event for node in made.nodes for event in node.events("node.resync")]
