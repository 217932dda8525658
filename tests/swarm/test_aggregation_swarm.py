"""Real processes train under an aggregation rule, and the ledger's replay verifies."""

from __future__ import annotations

import pytest

from support.real import LONG_MS, RealSwarm, ended, last_fingerprint, run_text

STEPS = 40
RULES = {
    "quorum": '[aggregation]\nkind = "quorum"\npercent = 50\n',  # two of three nodes
    "trimmed": '[aggregation]\nkind = "trimmed"\npercent = 10\n',
}


@pytest.mark.parametrize("rule", RULES)
def test_three_nodes_train_under_the_rule(swarm: RealSwarm, rule: str) -> None:
    swarm.coordinator(run_text(STEPS, length_ms=LONG_MS) + RULES[rule], "--wait-for", "3", "--evaluate-every", "10")
    nodes = [swarm.node(f"node-{number}") for number in range(3)]
    assert [ended(node) for node in nodes] == [0, 0, 0]
    status = swarm.status(fingerprint=True)
    assert (status.state, status.step, status.rounds_void) == ("complete", STEPS, 0)
    assert {last_fingerprint(node) for node in nodes} == {(STEPS, status.fingerprint)}
    assert status.fingerprints_different == 0
    assert status.loss_newest < status.loss_first - 0.2
    assert f"fingerprint {status.fingerprint:016x}" in swarm.verify()
