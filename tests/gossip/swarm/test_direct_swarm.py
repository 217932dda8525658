"""Real nodes that listen for each other train by gossip, and need the relay of their coordinator for nothing."""

from __future__ import annotations

import signal
from pathlib import Path

from deploy.local_swarm.ports import free_addresses
from support.real import RESTING, ended, real_swarm, run_text, until, without_a_centre
from support.swarm_parameters import deposited_mean, sealed_mean
from thinwire_node.gossip.journal import JOURNAL_FILE

GOSSIP = without_a_centre(3, 4, topology="complete", codec="int8", patience_ms=2000)
STEPS = 120
"""With nodes that rest, so many last until the peers of a restarted node have dialled it again."""
NAMES = ("one", "two", "three")


def run_of(steps: int, beat_ms: int) -> str:
    return run_text(steps, length_ms=beat_ms, rounds='pace = "clock"') + GOSSIP


def test_nodes_that_listen_train_and_one_is_killed_in_the_middle(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        ports = dict(zip(NAMES, free_addresses(len(NAMES)), strict=True))
        coordinator = swarm.coordinator(run_of(STEPS, beat_ms=2000))
        nodes = {name: swarm.node(name, "--peers", at, *RESTING) for name, at in ports.items()}
        journal = tmp_path / "two" / JOURNAL_FILE
        until(journal.exists, "a journal", coordinator, *nodes.values())
        nodes["two"].tell(signal.SIGKILL)
        nodes["two"].popen.wait()
        nodes["two"] = swarm.node("two", "--peers", ports["two"], *RESTING)
        for node in nodes.values():
            assert ended(node) == 0, node.tail(30)
            assert [event["refused"] for event in node.events("node.deposited")] == [""]
            assert node.events("node.peer_direct")
            assert "a peer failed" not in node.text()
        expected = deposited_mean(swarm, NAMES)
        assert sealed_mean(swarm).equal(expected.mean)
        assert f"the final mean of {len(NAMES) - len(expected.far)} nodes" in swarm.verify()
        for told in swarm.status().nodes:
            assert told.direct_up > told.relay_up, "what a node reports of its direct lines is shown"
            assert told.direct_up + told.relay_up == told.bytes_up
