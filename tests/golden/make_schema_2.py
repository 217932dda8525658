"""Creates the golden state directory `schema_2` with the code of commit c156e08. Usage: make_schema_2.py BASE OUT.

BASE: a checkout of that commit, with its packages on PYTHONPATH. OUT: a folder. See README.md.
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

SECTIONS = {
    "model": {"width": 32, "layers": 1, "heads": 2, "hidden": 32, "context": 32},
    "schedule": {"steps": 400, "warmup_steps": 2, "learning_rate": 0.002},
    "demo": {"k": 32},
    "round": {"samples": 4, "weight_max": 4, "length_ms": 4000},
}


def main(base: Path, out: Path) -> None:
    sys.path[:0] = [str(base / "tests"), str(base)]
    with tempfile.TemporaryDirectory() as work:
        state = Path(work) / "coordinator"
        make_state(state)
        run_two_lives(Path(work))
        facts = facts_of(state)
        shutil.rmtree(out, ignore_errors=True)
        keep = shutil.ignore_patterns("*lock", "*-wal", "*-shm", "sinks", "samples*")
        shutil.copytree(state, out / "coordinator", ignore=keep)
        (out / "facts.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")


def make_state(folder: Path) -> None:
    """Create a coordinator's state directory with an initial state and no sealed update."""
    from thinwire_proto.contract import Contract, CorpusSpec, Parameter, RunSpec
    from thinwire_proto.data.corpus import Corpus, CorpusFile
    from thinwire_proto.exact.replica import Replica
    from thinwire_proto.models import build_decoder, initial_state, manifest
    from thinwire_proto.wire.rows import genesis

    text = b"".join(b"line %d of a text that is easy to learn\n" % (number % 7) for number in range(400))
    corpus = Corpus([CorpusFile("a.py", text, False), CorpusFile("b.py", text[:3000], True)])
    data = CorpusSpec(corpus_hash=corpus.hash, corpus_bytes=corpus.size, train_bytes=len(corpus.train))
    run = RunSpec.model_validate(SECTIONS | {"data": data})
    contract = Contract.model_validate(run.model_dump() | {"parameters": (Parameter(name="x", shape=(1,)),)})
    contract = contract.model_copy(update={"parameters": manifest(build_decoder(contract.model, "meta"))})
    (folder / "snapshots").mkdir(parents=True)
    (folder / "corpus.zst").write_bytes(corpus.pack())
    first = Replica(contract, initial_state(contract.model, 7), 0, b"")
    first.head = genesis(contract.hash, first.state_hash())
    first.save(folder / "snapshots" / "0.safetensors")
    (folder / "contract.json").write_bytes(contract.written)


def facts_of(folder: Path) -> dict:
    from thinwire_coordinator.hall.ledger.state_directory import open_state, replica_at_head

    state = open_state(folder)
    replica = replica_at_head(state)
    facts = {
        "made_by": "c156e08",
        "contract": state.contract.hash.hex(),
        "step": replica.step,
        "head": replica.head.hex(),
        "fingerprint": f"{replica.fingerprint(0):016x}",
        "state": replica.state_hash().hex(),
        "contributions": sum(len(row.counted) for row in state.ledger.rows()),
        "terms": 2,
    }
    state.close()
    database = sqlite3.connect(folder / "ledger.sqlite")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return facts


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
