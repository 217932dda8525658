"""Checks the signatures of rows and of their contributions, for `verify`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from thinwire_coordinator.hall.ledger.signatures import Signatures
from thinwire_proto.errors import Damaged, LedgerError
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import PublicKey
from thinwire_proto.wire.rows import Counted, Row

StatementOf = Callable[[Counted], bytes]


def contribution_statement(entry: Counted) -> bytes:
    return statements.contribution(entry.contribution, entry.samples)


class SignatureCheck:
    """Checks row after row, and counts the signatures."""

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures
        self._coordinator = signatures.coordinator
        self._is_compared = False
        self._key_of = cache(signatures.key_of)
        self.rows = self.contributions = 0

    def check_key(self, fingerprint: bytes) -> None:
        """Raise LedgerError if the coordinator's key is another than the one with this fingerprint."""
        found = "no key" if self._coordinator is None else f"the key {self._coordinator.fingerprint.hex()}"
        if self._coordinator is None or self._coordinator.fingerprint != fingerprint:
            raise LedgerError(
                f"the rows are signed by {found}, but the invite names {fingerprint.hex()}: this is not the ledger of "
                "the run that the invite is for"
            )
        self._is_compared = True

    def check(self, row: Row, statement_of: StatementOf = contribution_statement) -> None:
        """Check a row's signature and those of its contributions. Raises Damaged with the step and the node.

        statement_of: what a node has signed."""
        signature = self._signatures.of_row(row.step)
        if self._coordinator is None or not self._coordinator.verifies(signature, statements.row(row.hash)):
            raise Damaged(f"step {row.step}: the row's signature is not that of the coordinator's key", row.step)
        self.rows += 1
        for entry in row.counted:
            self._check_contribution(row.step, entry, statement_of)

    def _check_contribution(self, step: int, entry: Counted, statement_of: StatementOf) -> None:
        signature, what = self._signatures.of_contribution(entry.contribution), f"step {step}: node {entry.node}"
        if signature is None:
            raise Damaged(f"{what}: its contribution has no signature", step)
        key: PublicKey | None = self._key_of(entry.node)
        if key is None:
            raise Damaged(f"{what}: its public key is missing", step)
        if key.node_id != entry.node:
            raise Damaged(f"{what}: the public key on record is that of node {key.node_id}", step)
        if not key.verifies(signature, statement_of(entry)):
            raise Damaged(f"{what}: the signature is not that of its contribution", step)
        self.contributions += 1

    def report(self) -> list[str]:
        """The result in words, if no check has failed."""
        lines = []
        if self._coordinator is not None:
            compared = ", which is the one that the invite names" if self._is_compared else ""
            lines.append(f"coordinator's key: {self._coordinator.fingerprint.hex()}{compared}")
        lines.append(f"signatures: {self.rows:,} of rows and {self.contributions:,} of contributions are correct")
        return lines
