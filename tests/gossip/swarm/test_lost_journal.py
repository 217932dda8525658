"""Real nodes: one that has lost its journal and kept its key begins anew, under another member number."""

from __future__ import annotations

import signal
from pathlib import Path

from support.real import RESTING, ended, real_swarm, run_text, until, without_a_centre
from support.swarm_parameters import rows
from thinwire_node.gossip.journal import JOURNAL_FILE

RUN = run_text(100_000, length_ms=500, rounds='pace = "clock"')
RUN += without_a_centre(3, 2, topology="complete", codec="int8", patience_ms=2000)


def test_a_node_that_lost_its_journal_adopts_and_goes_on(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        coordinator = swarm.coordinator(RUN)
        nodes = {name: swarm.node(name, *RESTING) for name in ("one", "two", "three")}
        folder = tmp_path / "two"
        old = folder / "old.safetensors"

        until(
            lambda: (folder / JOURNAL_FILE).exists() and rows(swarm) > 3,
            "beats are sealed",
            coordinator,
            *nodes.values(),
        )
        nodes["two"].tell(signal.SIGKILL)
        ended(nodes["two"])
        (folder / JOURNAL_FILE).rename(old)
        nodes["two"] = swarm.node("two", *RESTING)
        until((folder / JOURNAL_FILE).exists, "the node has adopted, and begun", coordinator, *nodes.values())
        topology = max(event["topology"] for event in nodes["two"].events("node.topology"))
        assert topology > 1
        at = rows(swarm)
        until(lambda: rows(swarm) > at + 3, "beats are sealed", coordinator, *nodes.values())
        nodes["two"].tell(signal.SIGTERM)
        assert ended(nodes["two"]) == 0
        assert "began anew" in swarm.verify()

        # a journal that is older than the node's reports: said, and what to do
        old.replace(folder / JOURNAL_FILE)
        nodes["two"] = swarm.node("two")
        assert ended(nodes["two"]) == 1
        assert "remove gossip.safetensors from its state directory" in nodes["two"].text()
        assert all(nodes[name].running for name in ("one", "three"))
