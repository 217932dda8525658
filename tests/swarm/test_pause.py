"""The organizer pauses a run of real processes, and lets it go on, under kills."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from deploy.local_swarm.processes import Process
from support.real import RealSwarm, ended, real_swarm, run_text, until, without_a_centre
from thinwire_node.gossip.journal import JOURNAL_FILE
from thinwire_proto.exact.tensor_files import read_about

NAMES = ("first", "second")
STEPS = {"star": 150, "gossip": 400}
RUNS = {
    "star": run_text(STEPS["star"]),
    "gossip": run_text(STEPS["gossip"], length_ms=1000, rounds='pace = "clock"')
    + without_a_centre(2, 4, topology="complete"),
}


@pytest.mark.parametrize("exchange", RUNS)
def test_no_round_begins_while_the_run_is_paused(tmp_path: Path, exchange: str) -> None:
    with real_swarm(tmp_path) as swarm:
        coordinator = swarm.coordinator(RUNS[exchange])
        nodes = [swarm.node(name) for name in NAMES]
        for reason in ("cheaper at night", "a storm"):
            swarm.reached(swarm.status().step + 3)
            told = swarm.command("pause", "--for", "9h", "--because", reason)
            assert told.returncode == 0, told.stderr
            _all_told(swarm, nodes, reason)
            if reason == "a storm":
                paused_at = _done(swarm, exchange)
                for process in (coordinator, *nodes):
                    process.tell(signal.SIGKILL)
                    ended(process)
                coordinator = swarm.coordinator(None)
                nodes = [swarm.node(name) for name in NAMES]
                _all_told(swarm, nodes, reason)
                done = [now - then for now, then in zip(_done(swarm, exchange), paused_at, strict=True)]
                assert all(0 <= more <= 2 for more in done)  # a gossip node ends its iteration
                assert max(paused_at) < STEPS[exchange] - 2
            assert swarm.command("resume").returncode == 0
        assert [ended(node, lambda: swarm.status().step) for node in nodes] == [0, 0]
        assert "not paused" in swarm.command("resume").stderr
        swarm.verify()


def _done(swarm: RealSwarm, exchange: str) -> list[int]:
    """Steps that are sealed, or the iterations that each node has on disk: a node may be lost for a moment, and the run
    then counts those of the others."""
    if exchange == "star":
        return [swarm.status().step]
    journals = [swarm.folder / name / JOURNAL_FILE for name in NAMES]
    return [json.loads(read_about(journal)["numbers"])[1] for journal in journals]


def _all_told(swarm: RealSwarm, nodes: list[Process], reason: str) -> None:
    for node in nodes:

        def is_told(node: Process = node) -> bool:
            told = [event["reason"] for event in node.events("node.waiting")]
            return any("paused by the organizer" in text and reason in text for text in told)

        until(is_told, "the node is told of the pause", *swarm.processes)
