"""Runs a swarm through two lives of its coordinator, with the code of the checkout that stands first on the path."""
# ruff: noqa: PLC0415 - the script that imports this module sets the path first
# mypy: ignore-errors

from __future__ import annotations

import signal
from pathlib import Path


def run_two_lives(folder: Path) -> None:
    """Run two nodes and two lives of the coordinator as real processes."""
    from support.real import real_swarm, until

    with real_swarm(folder) as swarm:
        first = swarm.coordinator(None, "--evaluate-every", "4")
        nodes = [swarm.node("node-a"), swarm.node("node-b")]
        swarm.reached(8)
        first.tell(signal.SIGTERM)
        until(lambda: not first.running, "the first life ends", first)
        second = swarm.coordinator(None, "--evaluate-every", "4")
        swarm.reached(12)
        for process in (*nodes, second):
            process.tell(signal.SIGTERM)
            until(lambda process=process: not process.running, "it ends", process)
        print(swarm.verify())
