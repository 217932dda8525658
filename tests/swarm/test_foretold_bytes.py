"""The bytes that `thinwire-coordinator check` foretells are those that a swarm of real processes sends."""

from __future__ import annotations

import json

import pytest

from support.real import LONG_MS, RealSwarm, ended, run_text
from thinwire_coordinator.cli.run_file import read_run
from thinwire_coordinator.planning.completion import facts_of
from thinwire_coordinator.planning.exchanges import plan_of
from thinwire_coordinator.planning.facts import DataFacts, SwarmFacts
from thinwire_node.observe.status import FILE

STEPS = 12
TOLERANCE = 0.1


def test_a_round_takes_the_foretold_bytes(swarm: RealSwarm) -> None:
    """At pace barrier, both nodes are in every round, so k is the same in each."""
    swarm.coordinator(run_text(STEPS, width=256, hidden=256, length_ms=LONG_MS), "--wait-for", "2")
    nodes = [swarm.node(name) for name in ("one", "two")]
    assert [ended(node) for node in nodes] == [0, 0]
    run = read_run(swarm.folder / "RUN.toml")
    plan = plan_of(run, facts_of(run.model), DataFacts(), SwarmFacts(2, 1e9, 1e9, 1e6))
    for name in ("one", "two"):
        report = json.loads((swarm.folder / name / FILE).read_text())
        sent, received = report["bytes"]["sent"], report["bytes"]["received"]
        assert report["given"]["counted"] == STEPS
        assert sent["contribution"] / STEPS == pytest.approx(plan.step.sent_bytes, rel=TOLERANCE)
        assert received["update"] / STEPS == pytest.approx(plan.step.received_bytes, rel=TOLERANCE)
        assert received["snapshot"] == pytest.approx(plan.first_download_bytes, rel=TOLERANCE)
