"""A node that flips its votes, among real processes: it loses its weight and is told why; the others are unharmed."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

from support.real import RealSwarm, run_text, until
from thinwire_coordinator.hall.access.store import AccessStore

HONEST = [f"honest-{number}" for number in range(4)]


def test_a_node_that_flips_its_votes_is_suspected_and_then_banned(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(run_text(100_000), "--wait-for", "5", "--audit-every", "2")
    nodes = [swarm.node(name) for name in HONEST]
    hostile = swarm.node("hostile", through=("flipping_node.py",))
    until(lambda: coordinator.events("coordinator.trust_changed"), "suspected", coordinator, hostile)
    until(lambda: hostile.events("node.not_counted"), "told", coordinator, hostile)
    refused = [event["reason"] for event in hostile.events("node.not_counted")]
    assert any("contradict" in reason or "lease" in reason for reason in refused)
    until(
        lambda: [event for event in coordinator.events("coordinator.trust_changed") if event["verdict"] == "banned"],
        "banned",
        coordinator,
        hostile,
    )
    judged = {event["name"] for event in coordinator.events("coordinator.trust_changed")}
    assert judged == {"hostile"}
    assert all(node.running for node in nodes)
    until(lambda: _listed(swarm)["ban"], "the ban is listed", coordinator)
    listed = _listed(swarm)
    assert listed["ban"]["by"] == "coordinator"
    assert "contradict" in listed["suspected"]
    assert "contradict" in listed["ban"]["reason"]
    until(lambda: _audits(swarm), "an audit", coordinator)
    step = swarm.status().step
    swarm.reached(step + 5)
    # the organizer overrules
    assert swarm.command("unban", listed["node"]).returncode == 0
    assert _listed(swarm)["ban"] is None


def _audits(swarm: RealSwarm) -> int:
    with closing(AccessStore(swarm.state)) as access:
        return sum(standing["audits"] for standing in access.standings.all().values())


def _listed(swarm: RealSwarm) -> dict[str, Any]:
    (found,) = (node for node in json.loads(swarm.command("nodes", "--json").stdout) if node["name"] == "hostile")
    return dict(found)
