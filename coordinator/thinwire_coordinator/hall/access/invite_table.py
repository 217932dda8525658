"""The invites in access.sqlite. A token is kept as its SHA-256 only, so a stolen file lets nobody in."""

from __future__ import annotations

import hashlib
from dataclasses import fields

from thinwire_coordinator.hall.access.database import Database
from thinwire_coordinator.hall.access.invites import InviteRecord
from thinwire_proto.errors import ConfigError

INVITES_MAX = 4096
"""Invites that are kept."""
COLUMNS = ", ".join(field.name for field in fields(InviteRecord))


class InviteTable:
    def __init__(self, database: Database, invites_max: int = INVITES_MAX) -> None:
        self._db = database
        self._invites_max = invites_max

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
        """Record a new invite; see `InviteRecord`. Raises ConfigError if there is no room for one more."""
        with self._db.transaction():
            self._make_room(now)
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

    def _make_room(self, now: float) -> None:
        """In a full table, forget the oldest invite that admits nobody any more. Its token is then unknown."""
        if self._db.execute("SELECT count(*) FROM invites")[0][0] < self._invites_max:
            return
        over = "revoked IS NOT NULL OR expires <= ? OR uses >= uses_max"
        oldest = f"SELECT number FROM invites WHERE {over} ORDER BY number LIMIT 1"
        if not self._db.write(f"DELETE FROM invites WHERE number = ({oldest})", now):
            text = f"{self._invites_max} invites are valid, the most that are kept; revoke one that nobody needs"
            raise ConfigError(f"{text}: thinwire-coordinator revoke NUMBER")

    def _one(self, column: str, value: object) -> InviteRecord | None:
        for row in self._db.execute(f"SELECT {COLUMNS} FROM invites WHERE {column} = ?", value):
            return InviteRecord(*row)
        return None


def _hash(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
