"""Replays all updates of a star run, and checks every hash, fingerprint, snapshot and signature."""

from __future__ import annotations

from collections.abc import Callable

from thinwire_coordinator.hall.ledger.checks import SignatureCheck, first_state, no_snapshot
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.star.replay import replay
from thinwire_proto.errors import Damaged, ReplicaError
from thinwire_proto.exact.replica import Replica

PROGRESS_STEPS = 1000


def verify_updates(state: RunState, say: Callable[[str], None], signatures: SignatureCheck) -> None:
    """Replay the run and check it. Raises LedgerError at the first failure."""
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
    for amendment in state.contract.amendments:
        say(f"amended from step {amendment.step} on: {amendment.in_words}")
    say(f"step {replica.step}: head {replica.head.hex()}, fingerprint {replica.model_fingerprint():016x}")


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
            return first_state(state, say), "the first state"
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
