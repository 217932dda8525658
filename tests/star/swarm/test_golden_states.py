"""Star runs of format 1 are opened, replayed and continued.

See tests/golden/README.md. Each test works on a copy.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fork_server import run
from support.real import RealSwarm, last_fingerprint, real_swarm, until
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.star.replay import replica_at_head
from thinwire_node.star.rules import shapes_kept
from thinwire_node.storage.state import NodeState
from thinwire_proto.contract import RunSpec, run_differences
from thinwire_proto.data.text import HELD_OUT
from thinwire_proto.identity.keys import KEY_FILE

GOLDEN = Path(__file__).parents[2] / "golden" / "format_1"
MORE = 3
"""Number of steps by which the runs are continued."""


@pytest.fixture(params=["demo", "local_adamw", "merged_muon"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def facts(name: str) -> dict[str, Any]:
    return dict(json.loads((GOLDEN / name / "facts.json").read_text()))


@pytest.fixture
def swarm(name: str, tmp_path: Path) -> Iterator[RealSwarm]:
    with real_swarm(tmp_path) as swarm:
        shutil.copytree(GOLDEN / name / "coordinator", swarm.state)
        shutil.copytree(GOLDEN / name / "node", swarm.folder / "node-a")
        for private in (swarm.state / KEY_FILE, swarm.state / "organizer.secret", swarm.folder / "node-a" / KEY_FILE):
            private.chmod(0o600)  # git keeps no such mode
        yield swarm


def test_a_coordinators_directory_opens_with_its_state_unchanged(swarm: RealSwarm, facts: dict[str, Any]) -> None:
    state = open_state(swarm.state)
    replica = replica_at_head(state)
    assert state.contract.hash.hex() == facts["contract"]
    assert (replica.step, replica.head.hex()) == (facts["step"], facts["head"])
    assert (replica.state_hash().hex(), f"{replica.model_fingerprint():016x}") == (facts["state"], facts["fingerprint"])
    assert [list(pair) for pair in state.ledger.losses(HELD_OUT)] == facts["losses"]
    assert state.ledger.rounds_void == facts["rounds_void"]
    assert state.ledger.begin_term().number == facts["terms"] + 1
    assert sorted(state.ledger.names(10).values()) == facts["names"]
    assert [one.in_words for one in state.contract.amendments] == facts["amendments"]
    state.close()


def test_the_run_file_of_a_run_matches_it(swarm: RealSwarm) -> None:
    document = json.loads((swarm.state / "contract.json").read_text())
    for key in ("parameters", "version", "lineage", "first_seed"):
        del document[key]
    document["data"] = {"seed": document["data"]["seed"]}
    state = open_state(swarm.state)
    run = RunSpec.model_validate(document)
    assert run_differences(state.contract.first, run) == []
    state.close()


def test_a_nodes_directory_is_read_without_a_coordinator(swarm: RealSwarm, facts: dict[str, Any]) -> None:
    folder = swarm.folder / "node-a"
    state = NodeState(folder)
    contract = state.contract()
    assert contract is not None
    assert contract.hash.hex() == facts["contract"]
    assert state.head is not None
    assert (state.head.step, state.head.hash.hex()) == (facts["node_step"], facts["node_head"])
    assert state.data(contract) is not None
    replica = state.replica(contract)
    assert replica is not None
    assert (replica.step, replica.state_hash().hex()) == (facts["node_step"], facts["node_state"])
    kept = state.momentum(shapes_kept(contract))
    assert kept is not None
    assert kept.trained_through is not None
    assert state.sent() == []
    state.close()
    shown = run(["thinwire-node", "status", "--state-dir", str(folder)], swarm.folder)
    assert shown.returncode == 0, shown.stderr
    assert f"step {facts['node_step']} of " in shown.stdout


def test_a_run_continues_with_its_node(swarm: RealSwarm, facts: dict[str, Any]) -> None:
    """The coordinator knows the node again, which keeps its momentum and its parameters."""
    goal = facts["step"] + MORE
    coordinator, node = swarm.coordinator(), swarm.node("node-a")
    swarm.reached(goal)
    status = swarm.status(fingerprint=True)
    assert status.fingerprints_compared > 0
    assert status.fingerprints_different == 0
    node.tell(signal.SIGTERM)
    until(lambda: not node.running, "the node leaves", node)
    assert not node.events("node.momentum_dropped")
    assert not node.events("node.snapshot_fetched"), "it keeps its parameters"
    left_at = last_fingerprint(node)
    head = swarm.status(fingerprint=True)
    if left_at[0] == head.step:  # otherwise the node left before the newest update arrived
        assert left_at[1] == head.fingerprint
    coordinator.tell(signal.SIGTERM)
    until(lambda: not coordinator.running, "the coordinator ends", coordinator)
    assert f"contract {facts['contract']}" in swarm.verify()
    state = open_state(swarm.state)
    rows = list(state.ledger.rows())
    assert len(rows) >= goal
    assert {row.term for row in rows[facts["step"] :]} == {facts["terms"] + 1}
    state.close()
