"""Tests that four processes train a model over gRPC, with bitwise equal replicas."""

from __future__ import annotations

from safetensors.torch import load_file

from support.real import LONG_MS, RealSwarm, ended, last_fingerprint, run_text

STEPS = 40


def test_three_nodes_train_and_all_four_replicas_are_equal(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(STEPS, length_ms=LONG_MS), "--wait-for", "3", "--evaluate-every", "10")
    nodes = [swarm.node(f"node-{number}") for number in range(3)]
    assert [ended(node) for node in nodes] == [0, 0, 0]

    status = swarm.status(fingerprint=True)
    assert (status.state, status.step, status.rounds_void) == ("complete", STEPS, 0)
    assert {last_fingerprint(node) for node in nodes} == {(STEPS, status.fingerprint)}
    # the base of each contribution was compared with the coordinator's replica
    assert (status.fingerprints_compared, status.fingerprints_different) == (3 * STEPS, 0)
    assert status.loss_newest < status.loss_first - 0.3
    assert [(node.counted, node.not_counted) for node in status.nodes] == [(STEPS, 0)] * 3
    assert status.tokens == 3 * STEPS * 4 * 64

    verified = swarm.verify()
    assert f"step {STEPS}: head" in verified
    assert f"fingerprint {status.fingerprint:016x}" in verified
    out = swarm.folder / "export.safetensors"
    assert swarm.command("export", "--step", "7", "--out", str(out)).returncode == 0
    assert sum(tensor.numel() for tensor in load_file(out).values()) == status.parameters
    sample = swarm.command("sample", "--prompt", "import ", "--length", "20")
    assert sample.returncode == 0
    assert sample.stdout.startswith("import ")
