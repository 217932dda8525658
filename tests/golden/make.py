"""Creates the golden state directories anew with the code of today: `PYTHONPATH=tests python -m golden.make`."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from support.new_state import make_state
from support.real import real_swarm, until
from support.small import small_contract
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.star.replay import replay, replica_at_head
from thinwire_node.storage.state import NodeState
from thinwire_proto.data.text import HELD_OUT

HERE = Path(__file__).parent
MODEL = {"width": 32, "layers": 1, "heads": 2, "hidden": 32, "context": 32}
SCHEDULE = {"steps": 24, "warmup_steps": 2, "learning_rate": 0.002}
RUNS: dict[str, dict[str, Any]] = {
    "demo": {
        "demo": {"k": 32, "update_topk": 64},
        "round": {"samples": 4, "weight_max": 4, "length_ms": 4000},
    },
    "local_adamw": {
        "rule": {"kind": "local_adamw", "micro_batch": 2},
        "demo": {"k": 32},
        "round": {"pace": "clock", "samples": 4, "weight_max": 4, "length_ms": 500, "base_age_max": 1},
    },
}
OLDER_STEP = 5
LEFT_OUT = shutil.ignore_patterns("*lock", "*-wal", "*-shm", "tls", "sinks", "samples*", "ready*", "*.json.part")


def main() -> None:
    for name, sections in RUNS.items():
        with tempfile.TemporaryDirectory() as work:
            state = Path(work) / "coordinator"
            state.mkdir()
            make_state(state, small_contract(model=MODEL, schedule=SCHEDULE, **sections)).close()
            _live_twice(Path(work))
            facts = _facts_of(state) | _facts_of_node(Path(work) / "node-a")
            target = HERE / name
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(state, target / "coordinator", ignore=LEFT_OUT)
            shutil.copytree(Path(work) / "node-a", target / "node", ignore=LEFT_OUT)
            (target / "facts.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")


def _live_twice(folder: Path) -> None:
    """Run two nodes and two lives of the coordinator as real processes."""
    with real_swarm(folder) as swarm:
        first = swarm.coordinator(None, "--evaluate-every", "4")
        nodes = [swarm.node("node-a"), swarm.node("node-b")]
        swarm.reached(8)
        first.tell(signal.SIGTERM)
        until(lambda: not first.running, "the first life ends", first)
        second = swarm.coordinator(None, "--evaluate-every", "4")
        swarm.reached(12)
        for process in (*nodes, second):
            process.tell(signal.SIGTERM)
            until(lambda process=process: not process.running, "it ends", process)  # type: ignore[misc]
        swarm.verify()


def _facts_of(folder: Path) -> dict[str, Any]:
    state = open_state(folder)
    replica, older = replica_at_head(state), state.load_snapshot(0)
    for _ in replay(state, older, OLDER_STEP):
        pass
    facts = {
        "contract": state.contract.hash.hex(),
        "step": replica.step,
        "head": replica.head.hex(),
        "fingerprint": f"{replica.model_fingerprint():016x}",
        "state": replica.state_hash().hex(),
        f"state_of_step_{OLDER_STEP}": older.state_hash().hex(),
        "losses": state.ledger.losses(HELD_OUT),
        "rounds_void": state.ledger.rounds_void,
        "terms": 2,
        "names": sorted(state.ledger.names(10).values()),
    }
    state.close()
    for name in ("ledger.sqlite", "access.sqlite"):
        with closing(sqlite3.connect(folder / name)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return facts


def _facts_of_node(folder: Path) -> dict[str, Any]:
    """It may have left before the newest update arrived."""
    state = NodeState(folder)
    contract, head = state.contract(), state.head
    assert contract is not None
    assert head is not None
    replica = state.replica(contract)
    assert replica is not None
    state.close()
    return {"node_step": head.step, "node_head": head.hash.hex(), "node_state": replica.state_hash().hex()}


if __name__ == "__main__":
    main()
