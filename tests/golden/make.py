"""Creates the golden folders of format 1 that are missing: `PYTHONPATH=tests python -m golden.make`."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from deploy.local_swarm.processes import Process
from support.new_state import make_state
from support.real import RealSwarm, ended, real_swarm, until
from support.small import small_contract
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.kinds import kind_of
from thinwire_node.storage.state import NodeState
from thinwire_proto.data.text import HELD_OUT

HERE = Path(__file__).parent / "format_1"
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
    "merged_muon": {
        "rule": {"kind": "merged_muon"},
        "round": {"samples": 4, "weight_max": 4, "length_ms": 4000, "base_age_max": 0},
    },
    "gossip": {
        "rule": {"kind": "adamw", "samples": 4},
        "exchange": {"kind": "gossip", "topology": "complete"},
        "round": {"pace": "clock", "length_ms": 1000, "min_contributions": 2},
    },
}
OLDER_STEP = 5
LEFT_OUT = shutil.ignore_patterns("*lock", "*-wal", "*-shm", "tls", "sinks", "samples*", "ready*", "*.part", "*.log")
OPTIONS = ("--evaluate-every", "4")


def main() -> None:
    for name, sections in RUNS.items():
        if (HERE / name).exists():
            continue
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work)
            state = folder / "coordinator"
            state.mkdir()
            make_state(state, small_contract(model=MODEL, schedule=SCHEDULE, **sections)).close()
            facts = _live(folder, name)
            facts |= _facts_of(state) | _facts_of_node(folder / "node-a")
            target = HERE / name
            for source, of in ((state, "coordinator"), (folder / "node-a", "node"), (folder / "model", "export")):
                shutil.copytree(source, target / of, ignore=LEFT_OUT)
            shutil.copy(folder / "invite", target / "invite")
            (target / "facts.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")


def _live(folder: Path, name: str) -> dict[str, Any]:
    """Run two nodes and two lives of the coordinator as real processes. Returns what its commands say of it."""
    with real_swarm(folder) as swarm:
        first = swarm.coordinator(None, *OPTIONS)
        nodes = [swarm.node("node-a"), swarm.node("node-b")]
        if name == "gossip":
            for node in nodes:
                assert ended(node) == 0, node.tail(30)
            until(lambda: swarm.status().measured_step == SCHEDULE["steps"], "the loss of the mean", first)
        else:
            swarm.reached(8)
        _end([first])
        second = swarm.coordinator(None, *OPTIONS)
        if name == "demo":
            _change_mind(swarm)
        if name != "gossip":
            swarm.reached(14)
        _end([*(node for node in nodes if node.running), second])
        done = swarm.command("export", "--out", str(folder / "model"))
        assert done.returncode == 0, done.stderr
        return {"verified": swarm.verify().splitlines()[-1]}


def _change_mind(swarm: RealSwarm) -> None:
    for command in (
        ("pause",),
        ("amend", "--set", "schedule.learning_rate=0.001", "--because", "a spike"),
        ("rewind", "6", "--set", "demo.k=48", "--because", "back before it"),
        ("resume",),
    ):
        done = swarm.command(*command)
        assert done.returncode == 0, done.stderr
    until(lambda: _amendments(swarm) == 2, "both are in the ledger")
    swarm.reached(swarm.status().step + 4)


def _amendments(swarm: RealSwarm) -> int:
    with closing(open_state(swarm.state, read_only=True)) as state:
        return len(state.ledger.amendments())


def _end(processes: Iterable[Process]) -> None:
    for process in processes:
        process.tell(signal.SIGTERM)
        until(lambda process=process: not process.running, "it ends", process)  # type: ignore[misc]


def _facts_of(folder: Path) -> dict[str, Any]:
    with closing(open_state(folder)) as state:
        kind = kind_of(state.contract)
        replica, older = kind.model_at(state, None), _older(state)
        facts = {
            "contract": state.contract.hash.hex(),
            "step": kind.trained(state.contract, replica),
            "rows": state.ledger.step,
            "head": replica.head.hex(),
            "fingerprint": f"{replica.model_fingerprint():016x}",
            "state": replica.state_hash().hex(),
            "losses": state.ledger.losses(HELD_OUT),
            "rounds_void": state.ledger.rounds_void,
            "terms": 2,
            "names": sorted(state.ledger.names(10).values()),
            "amendments": [one.in_words for one in state.contract.amendments],
        } | older
    for name in ("ledger.sqlite", "access.sqlite"):
        with closing(sqlite3.connect(folder / name)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return facts


def _older(state: Any) -> dict[str, Any]:
    """The state at an earlier step. A gossip run has none."""
    if state.contract.exchange.kind == "gossip":
        return {}
    return {f"state_of_step_{OLDER_STEP}": kind_of(state.contract).model_at(state, OLDER_STEP).state_hash().hex()}


def _facts_of_node(folder: Path) -> dict[str, Any]:
    """It may have left before the newest update arrived."""
    with closing(NodeState(folder)) as state:
        contract, head = state.contract(), state.head
        assert contract is not None
        if contract.exchange.kind == "gossip":
            return {}
        replica = state.replica(contract)
        assert head is not None
        assert replica is not None
        return {"node_step": head.step, "node_head": head.hash.hex(), "node_state": replica.state_hash().hex()}


if __name__ == "__main__":
    main()
