"""Real nodes whose coordinator chooses codec and `every` by the measured disagreement, and is killed after a change."""

from __future__ import annotations

import signal
from pathlib import Path

from support.real import ended, real_swarm, run_text, until, without_a_centre

RUN = run_text(200, length_ms=300, rounds='pace = "clock"')
RUN += without_a_centre(2, 2, topology="complete", codec="sign", consensus_target=0.001, patience_ms=5000)


def test_nodes_change_their_codec_and_the_ledger_says_why(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        coordinator = swarm.coordinator(RUN)
        nodes = [swarm.node(name) for name in ("one", "two")]
        until(lambda: bool(coordinator.events("coordinator.exchange_level")), "a change", coordinator, *nodes)
        change = coordinator.events("coordinator.exchange_level")[0]
        assert (change["codec"], change["every"]) == ("int8", 1)
        measured = coordinator.events("coordinator.disagreement")[0]
        assert measured["in_steps"] > 0.001
        assert change["start"] > measured["iteration"]
        coordinator.tell(signal.SIGKILL)
        ended(coordinator)
        swarm.coordinator(RUN)
        for node in nodes:
            assert ended(node) == 0, node.tail(30)
            assert not node.events("node.peer_left_out")  # edges that begin anew stay readable
        verified = swarm.verify()
        assert "changes of codec and every: each follows from the measurement in its row" in verified
        assert "the final mean of 2 nodes" in verified
