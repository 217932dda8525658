"""The access store: who may join the run, by the file access.sqlite in the coordinator's state directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from thinwire_common.units import human_seconds
from thinwire_coordinator.hall.access.addresses import network_of
from thinwire_coordinator.hall.access.database import FILE, Database, Table
from thinwire_coordinator.hall.access.door import Candidate, Denied, DoorReason
from thinwire_coordinator.hall.access.invites import ADDRESS_EVERY_S, InviteRecord, InviteTable, why_not
from thinwire_coordinator.hall.access.settings import AmendmentOrders, Pauses, SettingsTable

NODES_MAX = 1 << 16
"""Enrolled nodes that are kept, about 31 MB."""


NEVER = 0.0
"""In place of the time of a node's last join."""


@dataclass(frozen=True)
class NodeRecord:
    """An enrolled node. Times are Unix time in seconds.

    name: the newest that it gave, made readable. invite: the number of its invite; 0: it came without one. seen: its
    last join; NEVER: the run has refused it so far. address: of that join. enrolled_from: see `addresses.network_of`.
    """

    table: ClassVar[str] = "nodes"
    node: str
    public_key: bytes
    name: str
    invite: int
    enrolled: float
    enrolled_from: str
    seen: float
    address: str


class NodeTable(Table):
    def all(self) -> list[NodeRecord]:
        """All nodes, the one seen last at the end."""
        return self._db.records(NodeRecord, "ORDER BY seen")

    def of(self, node: str) -> NodeRecord | None:
        return next(iter(self._db.records(NodeRecord, "WHERE node = ?", node)), None)

    def beginning_with(self, digits: str) -> list[str]:
        """The ids that begin with these hexadecimal digits."""
        rows = self._db.execute("SELECT node FROM nodes WHERE substr(node, 1, ?) = ?", len(digits), digits)
        return [node for (node,) in rows]

    def of_invite(self, invite: int) -> list[str]:
        return [node for (node,) in self._db.execute("SELECT node FROM nodes WHERE invite = ?", invite)]

    def enrolled_from(self, invite: int, network: str, since: float) -> int:
        query = "SELECT count(*) FROM nodes WHERE invite = ? AND enrolled_from = ? AND enrolled > ?"
        return int(self._db.execute(query, invite, network, since)[0][0])

    def enrol(self, record: NodeRecord) -> None:
        """Record a node. One that came without an invite may be recorded again, with its invite."""
        self._make_room()
        self._db.put(record)

    def see(self, node: str, name: str, address: str, now: float) -> None:
        """Record that a node has joined."""
        self._db.write("UPDATE nodes SET name = ?, address = ?, seen = ? WHERE node = ?", name, address, now, node)

    def _make_room(self) -> None:
        """Forget the node that was away longest, among those with the invite that has enrolled most.

        So one invite in the wrong hands cannot push out the nodes of others. A forgotten node needs its token again.
        """
        if self._db.execute("SELECT count(*) FROM nodes")[0][0] < NODES_MAX:
            return
        most = "SELECT invite FROM nodes GROUP BY invite ORDER BY count(*) DESC LIMIT 1"
        oldest = f"SELECT node FROM nodes WHERE invite = ({most}) ORDER BY seen LIMIT 1"
        self._db.write(f"DELETE FROM nodes WHERE node = ({oldest})")


STANDINGS_MAX = 1 << 16
"""Standings that are kept. Those that did not change for longest go first."""


class StandingTable(Table):
    def all(self) -> dict[str, Any]:
        """All standings by node; one that cannot be read is left out."""
        found = {}
        for node, packed in self._db.execute("SELECT node, packed FROM standings ORDER BY number"):
            try:
                found[node] = json.loads(packed)
            except ValueError:
                continue
        return found

    def of(self, node: str) -> dict[str, Any]:
        """The standing of a node; empty if there is none."""
        for (packed,) in self._db.execute("SELECT packed FROM standings WHERE node = ?", node):
            return dict(json.loads(packed))
        return {}

    def suspected(self) -> dict[str, str]:
        """The nodes whose votes are not merged, each with the reason in words."""
        reasons = {node: plain.get("suspected") or {} for node, plain in self.all().items() if isinstance(plain, dict)}
        return {node: "; ".join(map(str, why.values())) for node, why in reasons.items() if why}

    def pardon(self, node: str) -> None:
        """Forget what there is against a node."""
        if plain := self.of(node):
            self.put({node: plain | {"suspected": {}, "evidence": {}, "bans": 0}})

    def put(self, standings: Mapping[str, Any]) -> None:
        with self._db.transaction():
            for node, plain in standings.items():
                insert = "INSERT OR REPLACE INTO standings (node, packed) VALUES (?, ?)"
                self._db.write(insert, node, json.dumps(plain))
            if self._db.execute("SELECT count(*) FROM standings")[0][0] > STANDINGS_MAX:
                keep = "SELECT number FROM standings ORDER BY number DESC LIMIT ?"
                self._db.write(f"DELETE FROM standings WHERE number NOT IN ({keep})", STANDINGS_MAX)


ORGANIZER, COORDINATOR = "organizer", "coordinator"
"""The authors of a decision."""


@dataclass(frozen=True)
class Ban:
    """The newest ban of a node. Times are Unix time in seconds.

    until: None means until the organizer lifts it. by: organizer or coordinator. count: bans that the node has had.
    """

    table: ClassVar[str] = "bans"
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


@dataclass(frozen=True)
class Decision:
    """A decision about a node. what: banned, unbanned, suspected, lowered or cleared. by: organizer or coordinator."""

    table: ClassVar[str] = "decisions"
    at: float
    node: str
    what: str
    reason: str
    by: str


class BanTable(Table):
    def of(self, node: str) -> Ban | None:
        """The newest ban of a node, which may have ended."""
        return next(iter(self._db.records(Ban, "WHERE node = ?", node)), None)

    def holding(self, now: float) -> dict[str, Ban]:
        return {ban.node: ban for ban in self._db.records(Ban, "WHERE until IS NULL OR until > ?", now)}

    def ban(self, node: str, until: float | None, reason: str, by: str, now: float) -> Ban:
        """Ban a node from `now` to `until`, in place of its earlier ban. until: None means until somebody lifts it."""
        with self._db.transaction():
            before = self.of(node)
            ban = Ban(node, now, until, reason, by, before.count + 1 if before else 1)
            self._db.write("DELETE FROM bans WHERE node = ?", node)
            self._make_room()
            self._db.put(ban)
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
        """The nodes that were pardoned after the decision with this number, and the newest number."""
        rows = self._db.execute("SELECT number, node, what FROM decisions WHERE number > ? ORDER BY number", number)
        return max((row[0] for row in rows), default=number), [node for _, node, what in rows if what == UNBANNED]

    @property
    def newest_decision(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(number), 0) FROM decisions")[0][0])

    def record(self, decision: Decision) -> None:
        with self._db.transaction():
            self._record(decision)

    def decisions(self, limit: int) -> list[Decision]:
        """The newest decisions, newest first."""
        return self._db.records(Decision, "ORDER BY number DESC LIMIT ?", limit)

    def _record(self, decision: Decision) -> None:
        number = self._db.put(decision)
        self._db.write("DELETE FROM decisions WHERE number <= ?", number - DECISIONS_MAX)

    def _make_room(self) -> None:
        if self._db.execute("SELECT count(*) FROM bans")[0][0] < BANS_MAX:
            return
        first = "SELECT node FROM bans ORDER BY until IS NULL, until LIMIT 1"
        self._db.write(f"DELETE FROM bans WHERE node = ({first})")


SEEN_EVERY_S = 60.0
"""The interval between records of a node that joins again and again."""
NO_INVITE = 0
"""The number in place of an invite's for nodes that came without one."""


class AccessStore:
    """The tables of a state directory, and the decision who may join. Raises LocalError if the file cannot be used.

    needs_invite: whether a node needs one, unless it enrolled with one; without, everybody is enrolled who is not
    banned.
    """

    def __init__(self, folder: Path, *, needs_invite: bool = True) -> None:
        self._db = Database(folder / FILE)
        self._needs_invite = needs_invite
        self.invites = InviteTable(self._db)
        self.nodes = NodeTable(self._db)
        self.bans = BanTable(self._db)
        self.settings = SettingsTable(self._db)
        self.pauses = Pauses(self.settings)
        self.amendments = AmendmentOrders(self.settings)
        self.standings = StandingTable(self._db)

    def close(self) -> None:
        self._db.close()

    def admit(self, candidate: Candidate, now: float) -> Denied | None:
        """Enrol a candidate, or find it among the enrolled ones; or say why not. It reads a file, so it may block.

        now: Unix time in seconds.
        """
        if (denied := self._banned(candidate, now)) or self._is_enrolled(candidate):
            return denied
        with self._db.transaction():  # so that two nodes cannot both have the last use of an invite
            invite, denied = self._invite_of(candidate, now)
            if denied is None:
                self._enrol(candidate, invite, now)
        return denied

    def would_admit(self, candidate: Candidate, now: float) -> Denied | None:
        """Say why `admit` would refuse a candidate; None if it would not. Changes nothing.

        now: Unix time in seconds.
        """
        if (denied := self._banned(candidate, now)) or self._is_enrolled(candidate):
            return denied
        return self._invite_of(candidate, now)[1]

    def joined(self, candidate: Candidate, now: float) -> None:
        """Record the name, the address and the time of a join. The time is up to SEEN_EVERY_S old, to spare the disk.

        now: Unix time in seconds.
        """
        known = self.nodes.of(candidate.public_key.node_id)
        if known is None:
            return  # forgotten meanwhile, for want of room
        same = (known.name, known.address) == (candidate.name, candidate.address)
        if not same or now - known.seen >= SEEN_EVERY_S:
            self.nodes.see(known.node, candidate.name, candidate.address, now)

    def revoke(self, number: int, now: float, *, nodes: bool = False, by: str = ORGANIZER) -> list[str]:
        """Revoke an invite. nodes: also ban the nodes that enrolled with it. Returns the ids of those newly banned."""
        banned = []
        with self._db.transaction():
            self.invites.revoke(number, now)
            for node in self.nodes.of_invite(number) if nodes else ():
                ban = self.bans.of(node)
                if ban is None or ban.until is not None or not ban.holds(now):
                    self.bans.ban(node, None, f"invite {number} was revoked", by, now)
                    banned.append(node)
        return banned

    def _banned(self, candidate: Candidate, now: float) -> Denied | None:
        """The refusal of a banned node; None if it is not."""
        ban = self.bans.of(candidate.public_key.node_id)
        return ban.denied(now) if ban is not None and ban.holds(now) else None

    def _is_enrolled(self, candidate: Candidate) -> bool:
        known = self.nodes.of(candidate.public_key.node_id)
        return known is not None and (known.invite != NO_INVITE or not self._needs_invite)

    def _invite_of(self, candidate: Candidate, now: float) -> tuple[int, Denied | None]:
        """The number of the invite that admits a candidate, or why none does."""
        if not self._needs_invite:
            return NO_INVITE, None
        if not candidate.token:
            text = "this coordinator does not know the node; give the invite: thinwire-node start INVITE"
            return NO_INVITE, Denied(DoorReason.NO_INVITE, text)
        invite = self.invites.of_token(candidate.token)
        if invite is None:
            text = "this coordinator has not made this invite; ask the organizer for a new one"
            return NO_INVITE, Denied(DoorReason.UNKNOWN_TOKEN, text)
        return invite.number, why_not(invite, self._enrolled_from(invite, candidate, now), now)

    def _enrolled_from(self, invite: InviteRecord, candidate: Candidate, now: float) -> int:
        network = network_of(candidate.address) or candidate.address
        return self.nodes.enrolled_from(invite.number, network, now - ADDRESS_EVERY_S) if invite.is_open else 0

    def _enrol(self, candidate: Candidate, invite: int, now: float) -> None:
        key, address = candidate.public_key, candidate.address
        self.invites.use(invite)
        self.nodes.enrol(
            NodeRecord(
                key.node_id, key.data, candidate.name, invite, now, network_of(address) or address, NEVER, address
            )
        )
