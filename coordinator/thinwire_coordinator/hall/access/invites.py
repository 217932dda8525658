"""Invites: whether one admits one more node, and their table in access.sqlite."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

from thinwire_coordinator.hall.access.database import Table
from thinwire_coordinator.hall.access.door import Denied, DoorReason
from thinwire_proto.errors import ConfigError

EXPIRES = "7d"
"""When an invite expires, unless the organizer says otherwise."""
OPEN_PER_ADDRESS = 4
"""Nodes that one address may enrol in a day with an open invite, unless the organizer says otherwise: a household's."""
ADDRESS_EVERY_S = 24 * 3600.0
"""`per_address_max` bounds the nodes of an address within this time."""


@dataclass(frozen=True)
class InviteRecord:
    """An invite as the coordinator keeps it. Times are Unix time in seconds.

    name: for the organizer. uses: nodes that enrolled with it; uses_max: None for any number. per_address_max: nodes
    that one address may enrol in a day, for an invite that is public; None for any number.
    """

    table: ClassVar[str] = "invites"
    number: int
    name: str
    uses: int
    uses_max: int | None
    per_address_max: int | None
    made: float
    expires: float | None
    revoked: float | None

    @property
    def is_open(self) -> bool:
        """Whether it is meant to be public."""
        return self.per_address_max is not None

    def state(self, now: float) -> str:
        """In one word: valid, revoked, expired or used_up."""
        denied = why_not(self, 0, now)
        return "valid" if denied is None else denied.reason.value


def why_not(invite: InviteRecord, from_address: int, now: float) -> Denied | None:
    """Return the reason why an invite does not admit one more node, or None if it does.

    from_address: nodes that the same address enrolled with it within ADDRESS_EVERY_S.
    """
    ask = "ask the organizer for a new one"
    if invite.revoked is not None:
        return Denied(DoorReason.REVOKED, f"this invite was revoked; {ask}")
    if invite.expires is not None and now >= invite.expires:
        return Denied(DoorReason.EXPIRED, f"this invite has expired; {ask}")
    if invite.uses_max is not None and invite.uses >= invite.uses_max:
        nodes = "one node" if invite.uses_max == 1 else f"{invite.uses_max} nodes"
        return Denied(DoorReason.USED_UP, f"this invite was for {nodes}, and is used up; {ask}")
    if invite.per_address_max is not None and from_address >= invite.per_address_max:
        text = f"{from_address} nodes have enrolled from this address in a day; ask the organizer for another invite"
        return Denied(DoorReason.RATE, text)
    return None


INVITES_MAX = 4096
"""Invites that are kept."""


class InviteTable(Table):
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
        return self._db.records(InviteRecord, "ORDER BY number")

    def of(self, number: int) -> InviteRecord | None:
        return next(iter(self._db.records(InviteRecord, "WHERE number = ?", number)), None)

    def of_token(self, token: bytes) -> InviteRecord | None:
        return next(iter(self._db.records(InviteRecord, "WHERE token_hash = ?", _hash(token))), None)

    def use(self, number: int) -> None:
        """Count one more node that enrolled with an invite."""
        self._db.write("UPDATE invites SET uses = uses + 1 WHERE number = ?", number)

    def revoke(self, number: int, now: float) -> None:
        self._db.write("UPDATE invites SET revoked = ? WHERE number = ? AND revoked IS NULL", now, number)

    def _make_room(self, now: float) -> None:
        """In a full table, forget the oldest invite that admits nobody any more. Its token is then unknown."""
        if self._db.execute("SELECT count(*) FROM invites")[0][0] < INVITES_MAX:
            return
        over = "revoked IS NOT NULL OR expires <= ? OR uses >= uses_max"
        oldest = f"SELECT number FROM invites WHERE {over} ORDER BY number LIMIT 1"
        if not self._db.write(f"DELETE FROM invites WHERE number = ({oldest})", now):
            text = f"{INVITES_MAX} invites are valid, the most that are kept; revoke one that nobody needs"
            raise ConfigError(f"{text}: thinwire-coordinator revoke NUMBER")


def _hash(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
