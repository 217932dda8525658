"""Tests real nodes whose replicas take steps of Muon on merged gradients, with kills and bitwise equal replicas."""

from __future__ import annotations

import signal

from safetensors.torch import load_file

from support.fork_server import run
from support.real import RealSwarm, ended, run_text, until

MERGED = """
pace = "clock"
[rule]
kind = "merged_muon"
"""


def test_replicas_with_moments_stay_equal_through_kills(swarm: RealSwarm) -> None:
    """A node that is killed goes on from its own disk, one that lost its disk from a snapshot, and the coordinator by
    replay."""
    text = run_text(100_000, samples=16, length_ms=2_000, rounds=MERGED).replace("0.002", "0.01")
    coordinator = swarm.coordinator(text, "--evaluate-every", "2")
    one, two = swarm.node("one"), swarm.node("two")
    until(lambda: swarm.status().step >= 6, "steps are sealed", one, two, coordinator)
    one.tell(signal.SIGKILL)
    ended(one)
    until(lambda: swarm.status().step >= 9, "the other goes on", two, coordinator)
    coordinator.tell(signal.SIGKILL)
    ended(coordinator)
    coordinator, one, three = swarm.coordinator(), swarm.node("one"), swarm.node("three")
    until(lambda: swarm.counted("one") >= 4, "the first is counted again", one, two, three, coordinator)
    until(lambda: swarm.counted("three") >= 4, "the third is counted", one, two, three, coordinator)
    for node in (one, two, three):
        node.tell(signal.SIGTERM)
    assert [ended(node) for node in (one, two, three)] == [0, 0, 0]

    status = swarm.status(fingerprint=True)
    assert status.fingerprints_different == 0
    assert status.loss_newest < status.loss_first - 0.3
    assert f"fingerprint {status.fingerprint:016x}" in swarm.verify()
    kept = load_file(swarm.folder / "one" / "replica.safetensors")
    assert any(tensor.any() for name, tensor in kept.items() if name.startswith("momentum:"))

    # a branch begins with moments of 0, and still knows whose model it is
    aside = swarm.folder / "aside"
    more = ("--apart", "--set", "schedule.learning_rate=0.02")
    made = swarm.command("branch", "--from", str(status.step), "--to", str(aside), *more)
    assert made.returncode == 0, made.stderr
    checked = run(["thinwire-coordinator", "verify", "--state-dir", str(aside)], swarm.folder)
    assert checked.returncode == 0, checked.stderr
