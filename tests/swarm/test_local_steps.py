"""Tests real nodes that take local steps and send sized differences, with bitwise equal replicas."""

from __future__ import annotations

import signal

from safetensors import safe_open

from support.real import RealSwarm, ended, run_text, until

LOCAL = """
pace = "clock"
[rule]
kind = "local_muon"
micro_batch = 2
[demo]
beta = 0.95
"""


def test_two_nodes_train_with_local_steps(swarm: RealSwarm) -> None:
    """Rounds are on a clock, so that updates arrive between local steps, and nodes look ahead."""
    text = run_text(100_000, samples=64, length_ms=600, rounds=LOCAL)
    swarm.coordinator(text, "--wait-for", "2", "--evaluate-every", "2")
    nodes = [swarm.node("one"), swarm.node("two")]
    until(lambda: swarm.status().measured_step >= 6, "the loss is measured", *nodes)
    until(lambda: swarm.status(fingerprint=True).fingerprints_compared >= 12, "replicas are compared", *nodes)
    for node in nodes:
        node.tell(signal.SIGTERM)
    assert [ended(node) for node in nodes] == [0, 0]

    status = swarm.status(fingerprint=True)
    assert status.fingerprints_different == 0
    assert status.loss_newest < status.loss_first - 0.3
    assert f"fingerprint {status.fingerprint:016x}" in swarm.verify()
    with safe_open(swarm.folder / "one" / "momentum.safetensors", framework="pt") as file:
        assert {"coefficients", "inner", "outer", "second"} <= set(file.keys())
