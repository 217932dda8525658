"""Eight real nodes train by gossip; two are killed for good, and two others join. Nobody stalls."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from deploy.local_swarm.processes import Process
from support.real import ended, real_swarm, run_text, until, without_a_centre
from support.timed_member import gaps_s

STEPS, PATIENCE_S = 100, 5.0
BEFORE = 5
"""Iterations of each node before the first is killed."""
AN_ITERATION_S = 5.0
"""More than one takes beside the seven others, on two cores that do other things too."""
RUN = run_text(STEPS, length_ms=500, rounds='pace = "clock"')
RUN += without_a_centre(8, 16, topology="one-peer-exponential", codec="int8", patience_ms=round(1000 * PATIENCE_S))
FIRST = [f"n{number}" for number in range(8)]
KILLED, JOINING = FIRST[2:4], ["n8", "n9"]
STAYING = [name for name in FIRST + JOINING if name not in KILLED]


@pytest.mark.timeout(600)
def test_two_of_eight_nodes_are_killed_two_join_and_nobody_stalls(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:

        def start(name: str) -> None:
            times = str(tmp_path / f"{name}.times")
            nodes[name] = swarm.node(name, through=("timed_member.py", times))

        def iterations(name: str) -> int:
            file = tmp_path / f"{name}.times"
            return len(file.read_text().splitlines()) if file.exists() else 0

        nodes: dict[str, Process] = {}
        coordinator = swarm.coordinator(RUN)
        for name in FIRST:
            start(name)
        until(lambda: min(map(iterations, FIRST), default=0) >= BEFORE, "all to begin", coordinator)
        for name in KILLED:
            nodes.pop(name).tell(signal.SIGKILL)
        for name in JOINING:
            start(name)
        for name, node in nodes.items():
            assert ended(node, partial(iterations, name)) == 0, node.tail(30)
            assert [event["refused"] for event in node.events("node.deposited")] == [""]
        for name in STAYING:
            assert max(gaps_s(tmp_path / f"{name}.times")) <= PATIENCE_S + AN_ITERATION_S, name
        assert f"the final mean of {len(STAYING)} nodes" in swarm.verify()
