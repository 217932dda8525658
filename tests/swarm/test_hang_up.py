"""A node and a coordinator whose terminal is closed leave in good order."""

from __future__ import annotations

import signal
from pathlib import Path

from support.real import ended, real_swarm, run_text, until


def test_closing_the_terminal_does_the_same_as_ctrl_c(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        coordinator = swarm.coordinator(run_text(100_000))
        node = swarm.node("a")
        until(lambda: swarm.counted("a") > 3, "the node is counted", node)
        node.tell(signal.SIGHUP)
        assert ended(node) == 0
        assert node.events("node.left")
        assert not (tmp_path / "a" / "ready.json").exists()
        coordinator.tell(signal.SIGHUP)
        assert ended(coordinator) == 0
        assert not (swarm.state / "ready.json").exists()
