"""The organizer pauses a gossip run of real processes, and lets it go on, under kills. A scenario plays a star run."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from deploy.local_swarm.processes import Process
from support.real import RealSwarm, ended, real_swarm, run_text, until, without_a_centre
from thinwire_node.gossip.journal import JOURNAL_FILE
from thinwire_proto.exact.tensor_files import read_about

NAMES = ("first", "second")
STEPS = 400
RUN = run_text(STEPS, length_ms=1000, rounds='pace = "clock"') + without_a_centre(2, 4, topology="complete")


def test_no_iteration_begins_while_the_run_is_paused(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        coordinator = swarm.coordinator(RUN)
        nodes = [swarm.node(name) for name in NAMES]
        for reason in ("cheaper at night", "a storm"):
            swarm.reached(swarm.status().step + 3)
            told = swarm.command("pause", "--for", "9h", "--because", reason)
            assert told.returncode == 0, told.stderr
            _all_told(swarm, nodes, reason)
            if reason == "a storm":
                paused_at = _done(swarm)
                for process in (coordinator, *nodes):
                    process.tell(signal.SIGKILL)
                    ended(process)
                coordinator = swarm.coordinator(None)
                nodes = [swarm.node(name) for name in NAMES]
                _all_told(swarm, nodes, reason)
                done = [now - then for now, then in zip(_done(swarm), paused_at, strict=True)]
                assert all(0 <= more <= 2 for more in done)  # a gossip node ends its iteration
                assert max(paused_at) < STEPS - 2
            assert swarm.command("resume").returncode == 0
        assert [ended(node, lambda: swarm.status().step) for node in nodes] == [0, 0]
        assert "not paused" in swarm.command("resume").stderr
        swarm.verify()


def _done(swarm: RealSwarm) -> list[int]:
    """The iterations that each node has on disk: a node may be lost for a moment, and the run then counts those of the
    others."""
    journals = [swarm.folder / name / JOURNAL_FILE for name in NAMES]
    return [json.loads(read_about(journal)["numbers"])[1] for journal in journals]


def _all_told(swarm: RealSwarm, nodes: list[Process], reason: str) -> None:
    for node in nodes:

        def is_told(node: Process = node) -> bool:
            told = [event["reason"] for event in node.events("node.waiting")]
            return any("paused by the organizer" in text and reason in text for text in told)

        until(is_told, "the node is told of the pause", *swarm.processes)
