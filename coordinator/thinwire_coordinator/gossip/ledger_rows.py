"""The ledger of a gossip run: rows of beats, and a last one with the final mean.

A row's fingerprint is that of θ₀, and in the last row that of the mean, which is the snapshot of the step after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import msgpack

from thinwire_common.files import rename_synced
from thinwire_coordinator.gossip.measurements import CONSENSUS, Measurement
from thinwire_coordinator.gossip.store import SealedReport
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.ledger.checks import check_follows, check_length
from thinwire_coordinator.hall.ledger.signatures import NodeSignature, RowSignatures
from thinwire_coordinator.hall.ledger.state_directory import GoOn, RunState, always, begun
from thinwire_coordinator.hall.workers import Job
from thinwire_proto.contract.amendment import Amendment, parse_amendment
from thinwire_proto.errors import Damaged, LedgerError, Locked, PayloadError, ReplicaError
from thinwire_proto.exact.amendments import ROW_KEY, amendments_in
from thinwire_proto.exact.replica import Replica
from thinwire_proto.gossip.reports import encode_reports
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
        check_goes_on(row, newest, head)
        head, newest = row.hash, row
        go_on()
    return first if newest is None or newest.extras.get(KIND) != MEAN else _final(state, newest)


def check_goes_on(row: Row, before: Row | None, head: bytes) -> None:
    """Raise Damaged unless a row follows the one before. head: that row's hash, or the first state's head."""
    check_follows(row, 0 if before is None else before.step + 1, head)
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


class RowSealer:
    """Seals rows one after another. The hall's replica is θ₀, or the mean once it is sealed.

    If the process dies before a row is in the ledger, its reports are in the next one (`store`)."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._replica = replica = hall.replica
        ledger = hall.state.ledger
        self.step = ledger.step
        """Rows that are sealed."""
        self._amended = len(ledger.amendments())  # amendments that they have
        self._round = hall.term.first_round
        newest = ledger.row(self.step - 1) if self.step else None
        self._head = newest.hash if newest else replica.head
        self.is_complete = newest is not None and newest.extras.get(KIND) == MEAN

    @property
    def begun(self) -> tuple[Amendment, ...]:
        """The amendments in force that no row has. The next row has them."""
        return self._hall.contract.amendments[self._amended :]

    async def seal(
        self,
        reports: list[SealedReport],
        leases: Callable[[], bytes],
        measured: Measurement | None = None,
    ) -> None:
        """Seal the reports of a beat, and a measurement of sketches that they or earlier ones name.

        Returns when they are on disk. Raises OSError or LedgerError; after Locked, nothing is on disk."""
        await self._hall.workers.submit(Job.WRITE_BEAT, self._write, reports, leases(), measured)

    def _write(self, reports: list[SealedReport], leases: bytes, measured: Measurement | None) -> None:
        body = encode_reports([entry.signed for entry in reports])
        counted = tuple(entry.counted for entry in reports)
        signed = [NodeSignature(entry.public_key, entry.signed.signature) for entry in reports]
        extras = {CONSENSUS: self._kept(measured)} if measured is not None else {}
        row = self._row(BEAT, self._replica, body, counted, extras)
        self._append(row, signed, leases, [entry.key for entry in reports])

    def write_mean(self, mean: Replica, body: bytes, counted: tuple[Counted, ...], signed: list[NodeSignature]) -> None:
        """Seal the mean: its file, then the row, then the file gets its name. A restart after the row gives it too."""
        row = self._row(MEAN, mean, body, counted, {})
        mean.step, mean.head = row.step + 1, row.hash
        path = self._hall.state.snapshot_path(mean.step)
        waiting = path.with_name(FINAL_FILE)
        _save_synced(mean, waiting)
        self._append(row, signed, None)
        rename_synced(waiting, path)
        self.is_complete = True

    def show_mean(self, mean: Replica) -> None:
        """Let the coordinator's replica be the mean. To be called on the worker of the replica."""
        self._replica.tensors, self._replica.step, self._replica.head = mean.tensors, mean.step, mean.head

    def _kept(self, measured: Measurement) -> dict[str, Any]:
        body = measured.body
        return measured.plain(self._hall.state.bodies.put(body), len(body))

    def _row(
        self, kind: str, replica: Replica, body: bytes, counted: tuple[Counted, ...], extras: dict[str, Any]
    ) -> Row:
        state, nonce = self._hall.state, self._hall.nonce()
        if written := [one.written for one in self.begun]:
            extras = {**extras, ROW_KEY: written}
        return Row(
            step=self.step,
            round=self._round,
            term=self._hall.term.number,
            nonce=nonce,
            fingerprint=replica.fingerprint(nonce),
            body_hash=state.bodies.put(body),
            body_bytes=len(body),
            counted=counted,
            previous=self._head,
            extras={KIND: kind, **extras},
        )

    def _append(self, row: Row, signed: list[NodeSignature], leases: bytes | None, forget: Sequence[str] = ()) -> None:
        state = self._hall.state
        signature = state.key.sign(statements.row(row.hash))
        amendments = list(map(parse_amendment, amendments_in(row.extras)))
        try:
            state.ledger.append(row, RowSignatures(signature, signed), leases, [*forget, *begun(amendments)])
        except Locked:
            state.bodies.remove([row.body_hash.hex()])
            raise
        self.step, self._round, self._head = self.step + 1, self._round + 1, row.hash
        self._amended += len(amendments)


def _save_synced(replica: Replica, path: Path) -> None:
    passing = path.with_name(path.name + ".part")
    replica.save(passing)
    rename_synced(passing, path)
