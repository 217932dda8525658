"""The replay of a replica to the head, from a snapshot and the rows after it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from thinwire_common.logs import tell
from thinwire_coordinator.hall.ledger.checks import check_length, no_snapshot
from thinwire_coordinator.hall.ledger.state_directory import GoOn, RunState, always
from thinwire_proto.errors import Damaged, LedgerError, ReplicaError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.wire.rows import Row

log = logging.getLogger("thinwire.coordinator")


def replay(state: RunState, replica: Replica, stop: int | None = None) -> Iterator[Row]:
    """Advance a replica from its step to `stop` (the head, if None). Yield each row after it is checked and applied.

    Checks each row's own hash, the chain, the body's hash, and the fingerprint of the state before the update. Raises
    LedgerError with the step, and leaves the replica at that step.
    """
    for row in state.ledger.rows(replica.step, stop):
        if row.step != replica.step:
            raise Damaged(f"step {replica.step}: the row is missing; the next row is of step {row.step}", replica.step)
        if row.previous != replica.head:
            raise Damaged(f"step {row.step}: the row does not follow the previous row", row.step)
        if replica.fingerprint(row.nonce) != row.fingerprint:
            # hashes protect rows, bodies and snapshots, so the computation on this machine must have gone wrong
            raise LedgerError(
                f"step {row.step}: the parameters do not match the sealed fingerprint; if they match it on another "
                "machine, the memory or processor of this one is faulty",
                row.step,
            )
        replica.apply(state.update(row), row.hash)
        yield row


def replica_at_head(state: RunState, *, set_aside: bool = False, go_on: GoOn = always) -> Replica:
    """Build a replica at the head: load the newest usable snapshot and replay the rows after it. Raises LedgerError,
    or OSError if the disk fails.

    set_aside: rename damaged snapshots, so that they are not sent to new nodes. go_on: called after each row.
    """
    check_length(state)
    return replica_at_step(state, None, set_aside=set_aside, go_on=go_on)


def replica_at_step(state: RunState, stop: int | None, *, set_aside: bool = False, go_on: GoOn = always) -> Replica:
    """The same at a step that the ledger holds (the head, if None), from the newest usable snapshot at or before it."""
    problems = []
    for step in reversed([found for found in state.snapshot_steps() if stop is None or found <= stop]):
        try:
            replica = state.load_own_snapshot(step)
        except ReplicaError as error:
            problems.append(str(error))
            if set_aside and step > 0:
                tell(
                    log,
                    logging.WARNING,
                    "coordinator.snapshot_unsound",
                    f"{error}; set aside as {step}.bad",
                    step=step,
                )
                state.snapshot_path(step).replace(state.snapshot_path(step).with_suffix(".bad"))
            continue
        for _ in replay(state, replica, stop):
            go_on()
        return replica
    if not problems:
        raise no_snapshot(state)
    raise Damaged(f"{state.folder}: no snapshot can be used: {'; '.join(problems)}", restore="one")
