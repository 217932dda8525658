"""A real coordinator is killed at each point of sealing a beat, and of the final mean, while real nodes take part."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from deploy.local_swarm.processes import Process
from support.dying import BEAT, MEAN
from support.real import RESTING, ended, real_swarm, run_text, until, without_a_centre
from support.swarm_parameters import deposited_mean, rows, sealed_mean
from thinwire_coordinator.verify import verify

NAMES = ("one", "two")
GOSSIP = without_a_centre(2, 2, topology="complete", codec="int8", patience_ms=2000)


def run_of(steps: int) -> str:
    return run_text(steps, length_ms=500, rounds='pace = "clock"') + GOSSIP


@pytest.mark.timeout(600)
def test_a_coordinator_killed_at_each_point_of_a_beat_leaves_a_ledger_that_verifies(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        nodes: list[Process] = []
        reports: list[int] = []
        for point in BEAT:
            dying = swarm.coordinator(run_of(100_000), through=("dying.py", point, "3"))
            nodes = nodes or [swarm.node(name, *RESTING) for name in NAMES]
            assert ended(dying) == -signal.SIGKILL, (point, dying.tail(20))
            said: list[str] = []
            verify(swarm.state, said.append)
            (count,) = re.findall(r"beats with ([\d,]+) reports", "\n".join(said))
            reports.append(int(count.replace(",", "")))
        assert reports == sorted(reports)
        assert reports[-1] > reports[0]
        coordinator = swarm.coordinator(run_of(100_000))
        before = rows(swarm)
        until(lambda: rows(swarm) > before + 2, "more beats are sealed", coordinator, *nodes)
        assert all(node.running for node in nodes)
        swarm.verify()


@pytest.mark.timeout(600)
def test_a_coordinator_killed_at_each_point_of_the_mean_seals_the_same_mean(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        nodes: list[Process] = []
        for point in MEAN:
            dying = swarm.coordinator(run_of(12), through=("dying.py", point, "1"))
            nodes = nodes or [swarm.node(name) for name in NAMES]
            assert ended(dying) == -signal.SIGKILL, (point, dying.tail(20))
            assert all(node.running for node in nodes)
        swarm.coordinator(run_of(12), "--keep", "2")
        for node in nodes:
            assert ended(node) == 0, node.tail(20)
        assert sealed_mean(swarm).equal(deposited_mean(swarm, NAMES).mean)
        assert "the final mean of 2 nodes" in swarm.verify()
