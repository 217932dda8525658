"""Tests a coordinator that keeps only the newest snapshots and updates, with a node that was away for longer."""

from __future__ import annotations

import signal

from support.real import RealSwarm, ended, run_text, until
from thinwire_coordinator.verify import verify


def test_a_node_that_missed_deleted_updates_catches_up_from_a_snapshot(swarm: RealSwarm) -> None:
    text = run_text(100_000) + "[demo]\nk = 2000\nupdate_topk = 0\n"  # makes an update almost as large as a snapshot
    bodies = swarm.folder / "elsewhere"
    coordinator = swarm.coordinator(text, "--keep", "2", "--bodies", str(bodies))
    stays, leaves = swarm.node("stays"), swarm.node("leaves")
    until(
        lambda: any(n.name == "leaves" and n.counted > 0 for n in swarm.status().nodes), "the node is counted", leaves
    )
    leaves.tell(signal.SIGTERM)
    assert ended(leaves) == 0
    left_at = swarm.status().step

    def snapshots() -> list[int]:
        return sorted(int(path.stem) for path in (swarm.state / "snapshots").glob("*.safetensors"))

    until(lambda: snapshots()[0] > left_at, "the first snapshots are deleted", coordinator)
    back = swarm.node("leaves", "--rounds", "1")
    assert ended(back) == 0, back.text()
    assert back.events("node.snapshot_fetched")
    assert stays.running
    assert not stays.events("node.resync")
    status = swarm.status()
    assert status.fingerprints_different == 0
    # a pass deletes the bodies of snapshots that the one before has deleted
    until(lambda: swarm.status().step > len(list(bodies.iterdir())), "their bodies are deleted", coordinator)

    coordinator.tell(signal.SIGKILL)
    ended(coordinator)
    oldest = snapshots()[0]
    said: list[str] = []
    verify(swarm.state, said.append)
    assert f"updates from the snapshot of step {oldest}, the oldest that is kept" in "\n".join(said)
