"""The signatures in the ledger: the coordinator's for each row, and each node's for its contributions.

Runs of thinwire 0.2.0 and older began without signatures. `about` holds the coordinator's public key, and the number of
rows that were sealed before it (`signed_from`). Only these rows, and the contributions in them, may lack a signature.
The coordinator signs such rows at its next start (`signing`); nobody can sign the contributions any more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from thinwire_proto.errors import Damaged, LedgerError
from thinwire_proto.identity.keys import PublicKey
from thinwire_proto.wire.rows import Counted


@dataclass(frozen=True)
class NodeSignature:
    """A node's signature of its contribution, and the public key that verifies it."""

    public_key: PublicKey
    signature: bytes


@dataclass(frozen=True)
class RowSignatures:
    """The signatures of one row.

    row: by the coordinator. contributions: by the nodes, in the order of `Row.counted`.
    """

    row: bytes
    contributions: Sequence[NodeSignature]


class Signatures:
    """The signatures in a ledger. execute, transaction: of its connection."""

    def __init__(
        self,
        execute: Callable[..., sqlite3.Cursor],
        transaction: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._execute = execute
        self._transaction = transaction

    @property
    def coordinator(self) -> PublicKey | None:
        """The key that signs the rows; None in a ledger from before signatures."""
        found = self._about("coordinator_key")
        return None if found is None else PublicKey(bytes.fromhex(found))

    @property
    def signed_from(self) -> int:
        """The number of rows that were sealed without signatures: all rows, if the coordinator has no key yet."""
        found = self._about("signed_from")
        return int(self._execute("SELECT count(*) FROM rows").fetchone()[0]) if found is None else int(found)

    def adopt(self, key: PublicKey) -> None:
        """Record the coordinator's key at its first start with one. Raises LedgerError if another is recorded."""
        if (known := self.coordinator) is None:
            with self._transaction():
                self._tell("signed_from", str(self.signed_from))
                self._tell("coordinator_key", key.data.hex())
        elif known != key:
            raise LedgerError("the ledger names another key of the coordinator")

    def record(self, step: int, counted: Sequence[Counted], signatures: RowSignatures) -> None:
        """Record the signatures of a row that is being appended. To be called inside the transaction."""
        self._execute("UPDATE rows SET signature = ? WHERE step = ?", (signatures.row, step))
        for entry, signed in zip(counted, signatures.contributions, strict=True):
            insert = "INSERT INTO contributions (hash, step, signature) VALUES (?, ?, ?)"
            self._execute(insert, (entry.contribution, step, signed.signature))
            insert = "INSERT OR IGNORE INTO public_keys (node, key) VALUES (?, ?)"
            self._execute(insert, (entry.node, signed.public_key.data))

    def sign(self, signatures: Iterable[tuple[int, bytes]]) -> None:
        """Record signatures of rows by step, in one transaction."""
        with self._transaction():
            for step, signature in signatures:
                self._execute("UPDATE rows SET signature = ? WHERE step = ?", (signature, step))

    def first_unsigned(self) -> int | None:
        """The first row without a signature, of those from before signatures."""
        query = "SELECT min(step) FROM rows WHERE step < ? AND signature IS NULL"
        found = self._execute(query, (self.signed_from,)).fetchone()[0]
        return None if found is None else int(found)

    def of_row(self, step: int) -> bytes | None:
        """The coordinator's signature of a row; None if the row is from before signatures. Raises Damaged."""
        found = self._execute("SELECT signature FROM rows WHERE step = ?", (step,)).fetchone()
        if found is None:
            raise Damaged(f"step {step}: the row is missing", step)
        if found[0] is None and step >= self.signed_from:
            raise Damaged(f"step {step}: the row has lost its signature", step)
        return None if found[0] is None else bytes(found[0])

    def of_contribution(self, contribution: bytes) -> bytes | None:
        """A node's signature of a contribution; None if the ledger has none."""
        found = self._execute("SELECT signature FROM contributions WHERE hash = ?", (contribution,)).fetchone()
        return None if found is None or found[0] is None else bytes(found[0])

    def key_of(self, node: str) -> PublicKey | None:
        """The public key of a node; None if the ledger has none."""
        found = self._execute("SELECT key FROM public_keys WHERE node = ?", (node,)).fetchone()
        return None if found is None else PublicKey(found[0])

    def _about(self, key: str) -> str | None:
        found = self._execute("SELECT value FROM about WHERE key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    def _tell(self, key: str, value: str) -> None:
        self._execute("INSERT INTO about (key, value) VALUES (?, ?)", (key, value))
