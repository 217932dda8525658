"""Creates golden state directories with the code of commit dbf738d. Usage: make.py BASE OUT; see README.md.

BASE: a checkout of that commit, with its packages on PYTHONPATH and its commands installed. OUT: a folder.
"""
# ruff: noqa: PLC0415 - imports the code of BASE
# mypy: ignore-errors

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

from two_lives import run_two_lives

MODEL = {"width": 32, "layers": 1, "heads": 2, "hidden": 32, "context": 32}
SCHEDULE = {"steps": 24, "warmup_steps": 2, "learning_rate": 0.002}
RUNS = {
    "demo": {
        "schedule": SCHEDULE,
        "demo": {"k": 32, "k_down": 64},
        "round": {"samples": 4, "weight_max": 4, "length_ms": 4000},
    },
    "local_adamw": {
        "schedule": SCHEDULE,
        "rule": {"name": "local_adamw", "micro_batch": 2},
        "demo": {"magnitude": "tile", "precondition": "none", "k": 32},
        "round": {"pace": "clock", "samples": 4, "weight_max": 4, "length_ms": 500, "base_age_max": 1},
    },
}
OLDER_STEP = 5


def main(base: Path, out: Path) -> None:
    sys.path[:0] = [str(base / "tests"), str(base)]
    for name, sections in RUNS.items():
        with tempfile.TemporaryDirectory() as work:
            make_state(Path(work) / "coordinator", sections)
            run_two_lives(Path(work))
            target = out / name
            shutil.rmtree(target, ignore_errors=True)
            keep = shutil.ignore_patterns("*lock", "*-wal", "*-shm")
            facts = facts_of(Path(work) / "coordinator")
            shutil.copytree(Path(work) / "coordinator", target / "coordinator", ignore=keep)
            shutil.copytree(Path(work) / "node-a", target / "node", ignore=keep)
            (target / "facts.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")


def make_state(folder: Path, sections: dict) -> None:
    """Create a coordinator's state directory with an initial state and no sealed update."""
    from thinwire_proto.corpus import Corpus, CorpusFile
    from thinwire_proto.replica import Replica
    from thinwire_proto.rows import genesis

    from thinwire_proto.contract import Contract, DataSpec, Parameter
    from thinwire_proto.models import build, initial_state, manifest

    text = b"".join(b"line %d of a text that is easy to learn\n" % (number % 7) for number in range(400))
    corpus = Corpus([CorpusFile("a.py", text, False), CorpusFile("b.py", text[:3000], True)])
    data = DataSpec(corpus_hash=corpus.hash, corpus_bytes=corpus.size, train_bytes=len(corpus.train))
    any_manifest = (Parameter(name="x", shape=(1,)),)
    contract = Contract.model_validate({"model": MODEL, "data": data, "parameters": any_manifest} | sections)
    contract = contract.model_copy(update={"parameters": manifest(build(contract.model, "meta"))})
    (folder / "snapshots").mkdir(parents=True)
    (folder / "corpus.zst").write_bytes(corpus.pack())
    first = Replica(contract, initial_state(contract.model, 7), 0, b"")
    first.head = genesis(contract.hash, first.state_hash())
    first.save(folder / "snapshots" / "0.safetensors")
    (folder / "contract.json").write_bytes(contract.canonical())


def facts_of(folder: Path) -> dict:
    from thinwire_coordinator.state import open_state, replay, replica_at_head

    state = open_state(folder)
    replica, older = replica_at_head(state), state.load_snapshot(0)
    for _ in replay(state, older, OLDER_STEP):
        pass
    facts = {
        "made_by": "dbf738d",
        "contract": state.contract.hash.hex(),
        "step": replica.step,
        "head": replica.head.hex(),
        "fingerprint": f"{replica.fingerprint(0):016x}",
        "state": replica.state_hash().hex(),
        f"state_of_step_{OLDER_STEP}": older.state_hash().hex(),
        "losses": state.ledger.losses(),
        "rounds_void": state.ledger.rounds_void,
        "epochs": 2,
        "names": sorted(state.ledger.names(10).values()),
    }
    state.close()
    database = sqlite3.connect(folder / "ledger.sqlite")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return facts


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
