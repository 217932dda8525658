"""Creates the state directory of a run without a sealed update."""

from __future__ import annotations

from pathlib import Path

from support.small import random_replica, small_contract, small_corpus
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_proto.contract import Contract
from thinwire_proto.wire.rows import genesis


def make_state(folder: Path, contract: Contract | None = None) -> RunState:
    """Create a state directory with an initial state and no sealed update."""
    contract, corpus = contract or small_contract(), small_corpus()
    (folder / "corpus.zst").write_bytes(corpus.pack())
    (folder / "snapshots").mkdir()
    replica = random_replica(contract)
    replica.head = genesis(contract.hash, replica.state_hash())
    replica.save(folder / "snapshots" / "0.safetensors")
    (folder / "contract.json").write_bytes(contract.written)
    return open_state(folder)
