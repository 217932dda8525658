"""The organizer goes back to an earlier step with another rate, and the nodes follow without their owners."""

from __future__ import annotations

import signal
from pathlib import Path

from support.real import ended, last_fingerprint, real_swarm, run_text, until

STEPS, BACK = 150, 6


def test_nodes_follow_into_a_branch_and_start_from_its_parent(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        coordinator = swarm.coordinator(run_text(STEPS))
        nodes = [swarm.node(name) for name in ("first", "second")]
        away = swarm.node("away")
        swarm.reached(10)
        away.tell(signal.SIGKILL)
        coordinator.tell(signal.SIGTERM)
        ended(coordinator)
        parent, swarm.state = swarm.state, tmp_path / "aside"
        back = ("--from", str(BACK), "--to", str(swarm.state), "--set", "schedule.learning_rate=0.0005")
        done = swarm.command("branch", *back, "--state-dir", str(parent))
        assert done.returncode == 0, done.stderr
        assert f"step {BACK} of {parent}" in done.stdout

        swarm.coordinator(None)
        until(lambda: swarm.active() == ["first", "second"], "the nodes follow", *swarm.processes)
        away = swarm.node("away")
        assert [ended(node, lambda: swarm.status().step) for node in (*nodes, away)] == [0, 0, 0]
        assert all("goes on as a branch from step 6" in node.text() for node in (*nodes, away))
        assert swarm.status().step == STEPS - BACK
        assert len({last_fingerprint(node) for node in (*nodes, away)}) == 1
        assert f"goes on from step {BACK} of the run" in swarm.verify()
        swarm.state = parent
        swarm.verify()
