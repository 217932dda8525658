"""The coordinator's machine is lost, and another one goes on from a backup that was made while the run went on."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from support.real import ended, real_swarm, run_text

STEPS = 150


def test_a_restored_coordinator_goes_on_with_the_nodes_there_are(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        coordinator = swarm.coordinator(run_text(STEPS))
        nodes = [swarm.node(name) for name in ("first", "second")]
        swarm.reached(4)
        copy = str(tmp_path / "copy")
        first = swarm.command("backup", "--to", copy)
        assert first.returncode == 0, first.stderr
        swarm.reached(swarm.status().step + 3)
        coordinator.tell(signal.SIGTERM)
        ended(coordinator)
        second = swarm.command("backup", "--to", copy)
        assert f"is in {copy}" in second.stdout
        assert " were there" in second.stdout

        shutil.rmtree(swarm.state)
        back = swarm.command("restore", copy)
        assert back.returncode == 0, back.stderr
        swarm.coordinator(None)
        assert [ended(node, lambda: swarm.status().step) for node in nodes] == [0, 0]
        assert swarm.status().step == STEPS
        assert f"step {STEPS}: head" in swarm.verify()
