"""The invites in access.sqlite. A token is kept as its SHA-256 only, so a stolen file lets nobody in."""

from __future__ import annotations

import hashlib
from dataclasses import fields

from thinwire_coordinator.access.database import Database
from thinwire_coordinator.access.invites import InviteRecord

COLUMNS = ", ".join(field.name for field in fields(InviteRecord))


class InviteTable:
    def __init__(self, database: Database) -> None:
        self._db = database

    def make(
        self,
        token: bytes,
        *,
        name: str,
        now: float,
        uses_max: int | None = None,
        per_address_max: int | None = None,
        expires: float | None = None,
    ) -> InviteRecord:
        """Record a new invite; see `InviteRecord`."""
        number = self._db.insert(
            "INSERT INTO invites (token_hash, name, uses_max, per_address_max, made, expires) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            *(_hash(token), name, uses_max, per_address_max, now, expires),
        )
        return InviteRecord(number, name, 0, uses_max, per_address_max, now, expires, None)

    def all(self) -> list[InviteRecord]:
        """All invites, oldest first."""
        return [InviteRecord(*row) for row in self._db.execute(f"SELECT {COLUMNS} FROM invites ORDER BY number")]

    def of(self, number: int) -> InviteRecord | None:
        return self._one("number", number)

    def of_token(self, token: bytes) -> InviteRecord | None:
        return self._one("token_hash", _hash(token))

    def use(self, number: int) -> None:
        """Count one more node that enrolled with an invite."""
        self._db.write("UPDATE invites SET uses = uses + 1 WHERE number = ?", number)

    def revoke(self, number: int, now: float) -> None:
        self._db.write("UPDATE invites SET revoked = ? WHERE number = ? AND revoked IS NULL", now, number)

    def _one(self, column: str, value: object) -> InviteRecord | None:
        for row in self._db.execute(f"SELECT {COLUMNS} FROM invites WHERE {column} = ?", value):
            return InviteRecord(*row)
        return None


def _hash(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
