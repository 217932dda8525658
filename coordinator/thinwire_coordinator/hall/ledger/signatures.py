"""The signatures in the ledger: the coordinator's for each row, and each node's for its contributions.

`about` holds the coordinator's public key.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from thinwire_proto.errors import Damaged, LedgerError
from thinwire_proto.identity.keys import PublicKey
from thinwire_proto.wire.rows import Counted


@dataclass(frozen=True)
class NodeSignature:
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
        """The key that signs the rows; None before the run's first start."""
        found = self._execute("SELECT value FROM about WHERE key = 'coordinator_key'").fetchone()
        return None if found is None else PublicKey(bytes.fromhex(found[0]))

    def adopt(self, key: PublicKey) -> None:
        """Record the coordinator's key at its first start with one. Raises LedgerError if another is recorded."""
        if (known := self.coordinator) is None:
            insert = "INSERT INTO about (key, value) VALUES ('coordinator_key', ?)"
            with self._transaction():
                self._execute(insert, (key.data.hex(),))
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

    def of_row(self, step: int) -> bytes:
        """The coordinator's signature of a row. Raises Damaged."""
        found = self._execute("SELECT signature FROM rows WHERE step = ?", (step,)).fetchone()
        if found is None:
            raise Damaged(f"step {step}: the row is missing", step)
        if found[0] is None:
            raise Damaged(f"step {step}: the row has lost its signature", step)
        return bytes(found[0])

    def of_contribution(self, contribution: bytes) -> bytes | None:
        """A node's signature of a contribution; None if the ledger has none."""
        found = self._execute("SELECT signature FROM contributions WHERE hash = ?", (contribution,)).fetchone()
        return None if found is None or found[0] is None else bytes(found[0])

    def key_of(self, node: str) -> PublicKey | None:
        """The public key of a node; None if the ledger has none."""
        found = self._execute("SELECT key FROM public_keys WHERE node = ?", (node,)).fetchone()
        return None if found is None else PublicKey(found[0])
