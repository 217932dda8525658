"""`thinwire-coordinator verify`: replay the whole run and check every hash, fingerprint and signature."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from thinwire_coordinator.gossip.ledger_rows import has_no_centre
from thinwire_coordinator.gossip.verify import verify_beats
from thinwire_coordinator.hall.ledger.blob_sizes import check_blobs
from thinwire_coordinator.hall.ledger.signature_check import SignatureCheck
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.star.replay import check_length, no_snapshot, replay
from thinwire_proto.errors import Damaged, LedgerError, ReplicaError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.wire.rows import genesis

PROGRESS_STEPS = 1000


def verify(folder: Path, say: Callable[[str], None], fingerprint: bytes | None = None) -> None:
    """Replay the run and check it. Raises LedgerError at the first failure.

    The replay starts from the first state or, if retention has deleted it, from the oldest snapshot. say: receives each
    line of the report, which names the start and the checks. fingerprint: of the key that must have signed the rows;
    None: the one that the ledger names.
    """
    state = open_state(folder, read_only=True)
    began_with = min(state.snapshot_steps(), default=0)
    try:
        _verify(state, say, fingerprint)
    except LedgerError as error:
        oldest = min(state.snapshot_steps(), default=0)
        if oldest == began_with or error.step is None or error.step >= oldest:
            raise
        raise LedgerError(
            f"{error}; meanwhile the coordinator that runs on {folder} has deleted its files before step {oldest}; "
            "run verify again",
            error.step,
        ) from None
    finally:
        state.close()


def _verify(state: RunState, say: Callable[[str], None], fingerprint: bytes | None) -> None:
    say(f"contract {state.contract.hash.hex()}")
    say(state.data.describe())
    _check_blobs(state, say)
    check_length(state)
    signatures = SignatureCheck(state.ledger.signatures)
    if fingerprint is not None:
        signatures.check_key(fingerprint)
    if has_no_centre(state.contract):
        verify_beats(state, _first_state(state, say), say, signatures)
        return
    replica, start = _oldest_state(state, say, signatures)
    snapshots = set(state.snapshot_steps()) - {replica.step}
    contributions = body_bytes = updates = 0
    checked = 1
    for row in replay(state, replica):
        signatures.check(row)
        updates += 1
        contributions += len(row.counted)
        body_bytes += row.body_bytes
        if replica.step in snapshots:
            checked += _check_snapshot(state, replica)
        if replica.step % PROGRESS_STEPS == 0:
            say(f"step {replica.step}: no errors so far")
    say(
        f"replayed {updates} updates from {start}: each row's hash, the chain, each body's hash and the "
        f"fingerprint before each update are correct ({contributions:,} contributions, {body_bytes:,} bytes of "
        f"bodies, {checked} snapshots)"
    )
    for line in signatures.report():
        say(line)
    say(f"step {replica.step}: head {replica.head.hex()}, fingerprint {replica.fingerprint(0):016x}")


def _check_blobs(state: RunState, say: Callable[[str], None]) -> None:
    right, missing = check_blobs(state)
    if right:
        say(f"blobs: the sizes of {right:,} files are correct")
    if missing:  # a copy of the directory without its data can be verified too
        say(f"blobs: {len(missing):,} files are not here, and were not checked")


def _oldest_state(state: RunState, say: Callable[[str], None], signatures: SignatureCheck) -> tuple[Replica, str]:
    """Return the state that the replay starts from, and its name in words.

    The rows before it are checked first. That takes long, and a running coordinator may delete the snapshot meanwhile.
    The replay then starts from the one that is the oldest by then."""
    replica, checked, head = None, 0, None
    while replica is None:
        steps = state.snapshot_steps()
        if not steps:
            raise no_snapshot(state)
        step = steps[0]
        if step == 0:
            return _first_state(state, say), "the first state"
        checked, head = _check_chain(state, checked, head, step, signatures)
        try:
            replica = state.load_own_snapshot(step)
        except ReplicaError as error:
            if step in state.snapshot_steps():
                raise Damaged(f"step {step}: {error}", step, restore="the snapshot") from None
    say(
        f"the first state was deleted by --keep: for the {step} updates before step {step}, only each row's hash, "
        "the chain and the signatures are checked"
    )
    return replica, f"the snapshot of step {step}, the oldest that is kept"


def _first_state(state: RunState, say: Callable[[str], None]) -> Replica:
    try:
        replica = state.load_snapshot(0)
    except ReplicaError as error:
        raise Damaged(f"step 0: {error}", 0, restore="the snapshot") from None
    if replica.head != genesis(state.contract.hash, replica.state_hash()):
        raise Damaged("step 0: the first state does not match the start of the ledger", 0, restore="its snapshot")
    say(f"first state: {replica.layout.parameters:,} parameters, genesis {replica.head.hex()}")
    return replica


def _check_chain(
    state: RunState, step: int, head: bytes | None, stop: int, signatures: SignatureCheck
) -> tuple[int, bytes | None]:
    """Check rows whose updates are deleted: each row's hash, that it names the previous row, its signatures.

    step: the first of them. head: the hash of the row before it. Returns both for the rows that follow."""
    for row in state.ledger.rows(step, stop):
        if row.step != step:
            raise Damaged(f"step {step}: the row is missing; the next row is of step {row.step}", step)
        if head is not None and row.previous != head:
            raise Damaged(f"step {row.step}: the row does not follow the previous row", row.step)
        signatures.check(row)
        step, head = step + 1, row.hash
    return step, head


def _check_snapshot(state: RunState, replica: Replica) -> bool:
    """Compare a snapshot with the replica. Return False if a running coordinator has deleted it meanwhile."""
    if not state.snapshot_path(replica.step).exists():
        return False
    try:
        snapshot = state.load_snapshot(replica.step)
    except ReplicaError as error:
        raise Damaged(f"step {replica.step}: {error}", replica.step, restore="the snapshot") from None
    if snapshot.head != replica.head or snapshot.state_hash() != replica.state_hash():
        text = f"step {replica.step}: the snapshot differs from the replayed state"
        raise Damaged(text, replica.step, restore="the snapshot")
    return True
