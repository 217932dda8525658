"""The ledger of a gossip run: rows of beats, and a last one with the final mean.

A row's fingerprint is that of θ₀, and in the last row that of the mean, which is the snapshot of the step after it.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass

import msgpack

from thinwire_common.files import rename_synced
from thinwire_coordinator.hall.ledger.checks import check_length
from thinwire_coordinator.hall.ledger.state_directory import GoOn, RunState, always
from thinwire_proto.errors import Damaged, LedgerError, PayloadError, ReplicaError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.identity import statements
from thinwire_proto.wire.rows import Counted, Row

BODY_VERSION = 1

KIND = "kind"
"""The optional field of a row that says which it is."""
BEAT, MEAN = "beat", "mean"
FINAL_FILE = "final.mean"
"""The mean's snapshot until its row is in the ledger."""


def state_at_head(state: RunState, go_on: GoOn = always) -> Replica:
    """θ₀, or the final mean if it is sealed. Checks the chain of the rows. Raises LedgerError."""
    check_length(state)
    try:
        first = state.load_snapshot(0)
    except ReplicaError as error:
        raise Damaged(f"step 0: {error}", 0, restore="the snapshot") from None
    head, newest = first.head, None
    for row in state.ledger.rows():
        check_follows(row, newest, head)
        head, newest = row.hash, row
        go_on()
    return first if newest is None or newest.extras.get(KIND) != MEAN else _final(state, newest)


def check_follows(row: Row, before: Row | None, head: bytes) -> None:
    """Raise Damaged unless a row follows the one before. head: that row's hash, or the first state's head."""
    expected = 0 if before is None else before.step + 1
    if row.step != expected:
        raise Damaged(f"step {expected}: the row is missing; the next row is of step {row.step}", expected)
    if row.previous != head:
        raise Damaged(f"step {row.step}: the row does not follow the previous row", row.step)
    if before is not None and before.extras.get(KIND) == MEAN:
        raise Damaged(f"step {row.step}: there is a row after the one that ended the run", row.step)


def _final(state: RunState, row: Row) -> Replica:
    """The mean that a row seals. If the process died before the file got its name, a coordinator gives it that now."""
    path = state.snapshot_path(row.step + 1)
    waiting = path.with_name(FINAL_FILE)
    if not path.exists() and waiting.exists():
        if state.secret_key is None:  # a command that only reads; a coordinator may be about to rename the file
            path = waiting
        else:
            rename_synced(waiting, path)
    try:
        mean = state.load_replica(path)
        if mean.head != row.hash:
            raise ReplicaError(f"{path} does not belong to the last row")
    except ReplicaError as error:
        raise Damaged(f"step {row.step}: the final mean: {error}", row.step, restore="the snapshot") from None
    if mean.fingerprint(row.nonce) != row.fingerprint:
        raise LedgerError(f"step {row.step}: the final mean does not match the sealed fingerprint", row.step)
    return mean


@dataclass(frozen=True)
class Deposited:
    """A node's parameters in the final mean."""

    node: str
    iteration: int
    head: bytes
    hash: bytes
    signature: bytes

    def statement(self, contract: bytes) -> bytes:
        """The bytes that the node signed. contract: its hash."""
        return statements.deposit(contract, self.iteration, self.head, self.hash)

    def counted(self, contract: bytes) -> Counted:
        name = hashlib.sha256(self.node.encode() + self.statement(contract)).digest()
        return Counted(self.node, name, 1, 0)


def encode_deposits(deposits: list[Deposited]) -> bytes:
    """The body of the last row."""
    return bytes(msgpack.packb([BODY_VERSION, [list(astuple(one)) for one in deposits]], use_bin_type=True))


def decode_deposits(data: bytes) -> list[Deposited]:
    """Read the body of the last row. Raises PayloadError."""
    try:
        version, entries = msgpack.unpackb(data, raw=False)
        if version != BODY_VERSION:
            raise ValueError(f"it has version {version}")
        found = [Deposited(*entry) for entry in entries]
        if any(tuple(map(type, astuple(one))) != (str, int, bytes, bytes, bytes) for one in found):
            raise ValueError("a field is of another kind")
        return found
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise PayloadError(f"these are no deposits: {error}") from None
