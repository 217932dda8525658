"""The replay of a replica to the head, from a snapshot and the rows after it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from thinwire_common.logs import tell
from thinwire_coordinator.hall.ledger.checks import check_follows, check_length, no_snapshot
from thinwire_coordinator.hall.ledger.state_directory import GoOn, RunState, always
from thinwire_proto.errors import Damaged, LedgerError, ReplicaError
from thinwire_proto.exact.amendments import history, rewinds
from thinwire_proto.exact.replica import Replica
from thinwire_proto.wire.rows import Row

log = logging.getLogger("thinwire.coordinator")


def not_kept(step: int) -> Replica:
    raise LedgerError(f"the parameters of step {step}, to which the run went back, are not kept", step)


def replay(
    state: RunState, replica: Replica, stop: int | None = None, earlier: Callable[[int], Replica] = not_kept
) -> Iterator[Row]:
    """Advance a replica from its step to `stop` (the head, if None). Yield each row after it is checked and applied.

    Checks each row's own hash, the chain, the body's hash, and the fingerprint of the state before the update. Raises
    LedgerError with the step, and leaves the replica at that step.

    earlier: the replica of an earlier step, to which a row goes back.
    """
    back = rewinds(state.contract)
    for row in state.ledger.rows(replica.step, stop):
        check_follows(row, replica.step, replica.head)
        if replica.fingerprint(row.nonce) != row.fingerprint:
            # hashes protect rows, bodies and snapshots, so the computation on this machine must have gone wrong
            raise LedgerError(
                f"step {row.step}: the parameters do not match the sealed fingerprint; if they match it on another "
                "machine, the memory or processor of this one is faulty",
                row.step,
            )
        update = state.update(row)
        if row.step in back:
            replica.go_back(earlier(back[row.step]), row.hash)
        else:
            replica.apply(update, row.hash)
        yield row


def replica_at_head(state: RunState, *, set_aside: bool = False, go_on: GoOn = always) -> Replica:
    """Build a replica at the head: load the newest usable snapshot and replay the rows after it. Raises LedgerError,
    or OSError if the disk fails.

    set_aside: rename damaged snapshots, so that they are not sent to new nodes. go_on: called after each row.
    """
    check_length(state)
    return replica_at_step(state, None, set_aside=set_aside, go_on=go_on)


def replica_at_step(state: RunState, stop: int | None, *, set_aside: bool = False, go_on: GoOn = always) -> Replica:
    """The same at a step that the ledger holds (the head, if None), from the newest usable snapshot that leads to it.
    Steps that were given up before are passed over."""
    problems = []
    to_head, stop = stop is None, state.ledger.step if stop is None else stop
    for step in reversed(state.snapshots_before(stop)):
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
        for first, last in history(state.contract, stop):
            if last < replica.step:
                continue
            if replica.step < first:
                replica.step, replica.head = first, state.ledger.row(first - 1).hash
            # up to the last row there is, whatever its number says
            for _ in replay(state, replica, None if to_head and last == stop else last):
                go_on()
        return replica
    if not problems:
        raise no_snapshot(state, stop)
    raise Damaged(f"{state.folder}: no snapshot can be used: {'; '.join(problems)}", restore="one")
