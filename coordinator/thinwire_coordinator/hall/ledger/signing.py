"""Signs the rows that an older version sealed without a signature."""

from __future__ import annotations

from thinwire_coordinator.hall.ledger.state_directory import GoOn, RunState, always
from thinwire_proto.errors import Damaged
from thinwire_proto.identity import statements

BATCH_ROWS = 1000
"""Rows that are signed in one transaction."""


def sign_older_rows(state: RunState, go_on: GoOn = always) -> int:
    """Sign the rows without a signature, and return how many there were. Raises LedgerError.

    Each row must match its hash and follow the row before it, because the signature vouches for it. A later call
    continues where this one was interrupted.
    """
    ledger, signed = state.ledger, 0
    step, previous = ledger.signatures.first_unsigned(), None
    if step is None:
        return 0
    if step > 0:
        previous = ledger.row(step - 1).hash
    stop = ledger.signatures.signed_from
    while step < stop:
        go_on()
        batch = []
        for row in ledger.rows(step, min(step + BATCH_ROWS, stop)):
            if previous not in (None, row.previous):
                raise Damaged(f"step {row.step}: the row does not follow the previous row", row.step)
            batch.append((row.step, state.key.sign(statements.row(row.hash))))
            previous = row.hash
        ledger.signatures.sign(batch)
        signed += len(batch)
        step += BATCH_ROWS
    return signed
