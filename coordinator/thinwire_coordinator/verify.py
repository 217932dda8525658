"""`thinwire-coordinator verify`: replay the whole run and check every hash and every fingerprint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from thinwire_coordinator.state import State, check_length, open_state, replay
from thinwire_proto.errors import LedgerError, ReplicaError
from thinwire_proto.replica import Replica
from thinwire_proto.rows import genesis

PROGRESS_STEPS = 1000


def verify(folder: Path, say: Callable[[str], None]) -> None:
    """Replays from the first state, says what was checked, and raises LedgerError at the first thing that fails."""
    state = open_state(folder)
    say(f"contract {state.contract.hash.hex()}")
    say(f"corpus {state.contract.data.corpus_hash}: {state.corpus.size:,} bytes in {len(state.corpus.files)} files")
    check_length(state)
    replica = _first_state(state)
    say(f"first state: {replica.layout.parameters:,} parameters, genesis {replica.head.hex()}")
    snapshots = set(state.snapshot_steps()) - {0}
    contributions = body_bytes = 0
    for row in replay(state, replica):
        contributions += len(row.counted)
        body_bytes += row.body_bytes
        if replica.step in snapshots:
            _check_snapshot(state, replica)
        if replica.step % PROGRESS_STEPS == 0:
            say(f"step {replica.step}: so far everything holds")
    state.close()
    say(
        f"replayed {replica.step} updates from the first state: each row's hash, the chain, each body's hash and the "
        f"fingerprint before each update hold ({contributions:,} contributions, {body_bytes:,} bytes of bodies, "
        f"{1 + len(snapshots)} snapshots)"
    )
    say(f"step {replica.step}: head {replica.head.hex()}, fingerprint {replica.fingerprint(0):016x}")


def _first_state(state: State) -> Replica:
    try:
        replica = state.load_snapshot(0)
    except ReplicaError as error:
        raise LedgerError(f"step 0: {error}", 0) from None
    if replica.head != genesis(state.contract.hash, replica.state_hash()):
        raise LedgerError("step 0: the first state is not the one that the ledger began with", 0)
    return replica


def _check_snapshot(state: State, replica: Replica) -> None:
    try:
        snapshot = state.load_snapshot(replica.step)
    except ReplicaError as error:
        raise LedgerError(f"step {replica.step}: {error}", replica.step) from None
    if snapshot.head != replica.head or snapshot.state_hash() != replica.state_hash():
        raise LedgerError(f"step {replica.step}: the snapshot is not what the updates lead to", replica.step)
