"""Checks of a state directory that hold for runs of every kind."""

from __future__ import annotations

from collections.abc import Callable

from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_proto.errors import Damaged, ReplicaError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.wire.rows import genesis


def no_snapshot(state: RunState) -> Damaged:
    """The error of a run that has no snapshot, not even one of the first state."""
    text = f"{state.folder}: no snapshot can be used: none exists"
    if bad := sorted(path.name for path in (state.folder / "snapshots").glob("*.bad")):
        text += f" beside {', '.join(bad)}, set aside as damaged"
    return Damaged(text, restore="one")


def check_length(state: RunState) -> None:
    """Raise LedgerError if the ledger has lost its last rows: that is, if a snapshot is newer than the last row."""
    step, newest = state.ledger.step, max(state.snapshot_steps(), default=0)
    if newest > step:
        raise Damaged(
            f"step {step}: the ledger ends here, but a snapshot of step {newest} exists: the last rows were lost",
            step,
        )


def first_state(state: RunState, say: Callable[[str], None]) -> Replica:
    """The first state, checked against the start of the ledger. say: receives a line about it. Raises Damaged."""
    try:
        replica = state.load_snapshot(0)
    except ReplicaError as error:
        raise Damaged(f"step 0: {error}", 0, restore="the snapshot") from None
    if replica.head != genesis(state.contract.hash, replica.state_hash()):
        raise Damaged("step 0: the first state does not match the start of the ledger", 0, restore="its snapshot")
    say(f"first state: {replica.layout.parameters:,} parameters, genesis {replica.head.hex()}")
    return replica
