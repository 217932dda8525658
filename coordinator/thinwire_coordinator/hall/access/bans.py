"""Bans: whether one holds, the refusal that the banned node receives, and their table in access.sqlite."""

from __future__ import annotations

from dataclasses import dataclass, fields

from thinwire_common.units import human_seconds
from thinwire_coordinator.hall.access.database import Database
from thinwire_coordinator.hall.access.refusals import Denied, DoorReason

ORGANIZER, COORDINATOR = "organizer", "coordinator"
"""The authors of a decision."""


@dataclass(frozen=True)
class Ban:
    """The newest ban of a node. Times are Unix time in seconds.

    until: None means until the organizer lifts it. by: organizer or coordinator. count: bans that the node has had.
    """

    node: str
    since: float
    until: float | None
    reason: str
    by: str
    count: int

    def holds(self, now: float) -> bool:
        return self.until is None or now < self.until

    def denied(self, now: float) -> Denied:
        """The refusal that the node receives while the ban holds."""
        left = "until the organizer lifts it" if self.until is None else f"for {human_seconds(self.until - now)} more"
        why = f": {self.reason}" if self.reason else ""
        return Denied(DoorReason.BANNED, f"this node is banned {left}{why}")


BANS_MAX = 1 << 16
"""Bans that are kept. The ones that have ended go first."""
DECISIONS_MAX = 10_000
"""The newest decisions are kept."""
UNBANNED = "unbanned"
COLUMNS = ", ".join(field.name for field in fields(Ban))


@dataclass(frozen=True)
class Decision:
    """A decision about a node. what: banned, unbanned, suspected, lowered or cleared. by: organizer or coordinator."""

    at: float
    node: str
    what: str
    reason: str
    by: str


class BanTable:
    def __init__(self, database: Database, bans_max: int = BANS_MAX, decisions_max: int = DECISIONS_MAX) -> None:
        self._db = database
        self._bans_max = bans_max
        self._decisions_max = decisions_max

    def of(self, node: str) -> Ban | None:
        """The newest ban of a node, which may have ended."""
        for row in self._db.execute(f"SELECT {COLUMNS} FROM bans WHERE node = ?", node):
            return Ban(*row)
        return None

    def holding(self, now: float) -> dict[str, Ban]:
        """The bans that hold, by node."""
        rows = self._db.execute(f"SELECT {COLUMNS} FROM bans WHERE until IS NULL OR until > ?", now)
        return {ban.node: ban for ban in (Ban(*row) for row in rows)}

    def ban(self, node: str, until: float | None, reason: str, by: str, now: float) -> Ban:
        """Ban a node from `now` to `until`, in place of its earlier ban. until: None means until somebody lifts it."""
        with self._db.transaction():
            before = self.of(node)
            ban = Ban(node, now, until, reason, by, before.count + 1 if before else 1)
            self._db.write("DELETE FROM bans WHERE node = ?", node)
            self._make_room()
            placeholders = ", ".join("?" * len(fields(Ban)))
            values = (getattr(ban, field.name) for field in fields(Ban))
            self._db.write(f"INSERT INTO bans ({COLUMNS}) VALUES ({placeholders})", *values)
            self._record(Decision(now, node, "banned", reason, by))
        return ban

    def unban(self, node: str, reason: str, by: str, now: float) -> bool:
        """Pardon a node: its ban ends, if it has one. Returns whether one held. Its count stays."""
        with self._db.transaction():
            ended = self._db.write(
                "UPDATE bans SET until = ? WHERE node = ? AND (until IS NULL OR until > ?)", now, node, now
            )
            self._record(Decision(now, node, UNBANNED, reason, by))
        return bool(ended)

    def pardoned_since(self, number: int) -> tuple[int, list[str]]:
        """See `port.Bans`."""
        rows = self._db.execute("SELECT number, node, what FROM decisions WHERE number > ? ORDER BY number", number)
        return max((row[0] for row in rows), default=number), [node for _, node, what in rows if what == UNBANNED]

    @property
    def newest_decision(self) -> int:
        """The number of the newest decision."""
        return int(self._db.execute("SELECT coalesce(max(number), 0) FROM decisions")[0][0])

    def record(self, decision: Decision) -> None:
        """Record a decision that is no ban."""
        with self._db.transaction():
            self._record(decision)

    def decisions(self, limit: int) -> list[Decision]:
        """The newest decisions, newest first."""
        query = "SELECT at, node, what, reason, by FROM decisions ORDER BY number DESC LIMIT ?"
        return [Decision(*row) for row in self._db.execute(query, limit)]

    def _record(self, decision: Decision) -> None:
        values = (decision.at, decision.node, decision.what, decision.reason, decision.by)
        number = self._db.insert("INSERT INTO decisions (at, node, what, reason, by) VALUES (?, ?, ?, ?, ?)", *values)
        self._db.write("DELETE FROM decisions WHERE number <= ?", number - self._decisions_max)

    def _make_room(self) -> None:
        if self._db.execute("SELECT count(*) FROM bans")[0][0] < self._bans_max:
            return
        first = "SELECT node FROM bans ORDER BY until IS NULL, until LIMIT 1"
        self._db.write(f"DELETE FROM bans WHERE node = ({first})")
