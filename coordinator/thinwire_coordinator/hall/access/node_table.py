"""The enrolled nodes in access.sqlite. Their addresses are for the organizer alone."""

from __future__ import annotations

from dataclasses import dataclass, fields

from thinwire_coordinator.hall.access.database import Database

NODES_MAX = 1 << 16
"""Enrolled nodes that are kept, about 31 MB."""


@dataclass(frozen=True)
class NodeRecord:
    """An enrolled node. Times are Unix time in seconds.

    name: the newest that it gave, made readable. invite: the number of its invite; 0: it came without one. address: of
    its last join. enrolled_from: see `invites.network_of`.
    """

    node: str
    public_key: bytes
    name: str
    invite: int
    enrolled: float
    enrolled_from: str
    seen: float
    address: str


COLUMNS = ", ".join(field.name for field in fields(NodeRecord))


class NodeTable:
    def __init__(self, database: Database, nodes_max: int = NODES_MAX) -> None:
        self._db = database
        self._nodes_max = nodes_max

    def all(self) -> list[NodeRecord]:
        """All nodes, the one seen last at the end."""
        return [NodeRecord(*row) for row in self._db.execute(f"SELECT {COLUMNS} FROM nodes ORDER BY seen")]

    def of(self, node: str) -> NodeRecord | None:
        for row in self._db.execute(f"SELECT {COLUMNS} FROM nodes WHERE node = ?", node):
            return NodeRecord(*row)
        return None

    def beginning_with(self, digits: str) -> list[str]:
        """The ids that begin with these hexadecimal digits."""
        rows = self._db.execute("SELECT node FROM nodes WHERE substr(node, 1, ?) = ?", len(digits), digits)
        return [node for (node,) in rows]

    def of_invite(self, invite: int) -> list[str]:
        return [node for (node,) in self._db.execute("SELECT node FROM nodes WHERE invite = ?", invite)]

    def enrolled_from(self, invite: int, network: str, since: float) -> int:
        """Count the nodes of a network that enrolled with an invite since a time."""
        query = "SELECT count(*) FROM nodes WHERE invite = ? AND enrolled_from = ? AND enrolled > ?"
        return int(self._db.execute(query, invite, network, since)[0][0])

    def enrol(self, record: NodeRecord) -> None:
        """Record a node. One that came without an invite may be recorded again, with its invite."""
        self._make_room()
        placeholders = ", ".join("?" * len(fields(NodeRecord)))
        values = (getattr(record, field.name) for field in fields(NodeRecord))
        self._db.write(f"INSERT OR REPLACE INTO nodes ({COLUMNS}) VALUES ({placeholders})", *values)

    def see(self, node: str, name: str, address: str, now: float) -> None:
        """Record that a node has joined again."""
        self._db.write("UPDATE nodes SET name = ?, address = ?, seen = ? WHERE node = ?", name, address, now, node)

    def _make_room(self) -> None:
        """Forget the node that was away longest, among those with the invite that has enrolled most.

        So one invite in the wrong hands cannot push out the nodes of others. A forgotten node needs its token again.
        """
        if self._db.execute("SELECT count(*) FROM nodes")[0][0] < self._nodes_max:
            return
        most = "SELECT invite FROM nodes GROUP BY invite ORDER BY count(*) DESC LIMIT 1"
        oldest = f"SELECT node FROM nodes WHERE invite = ({most}) ORDER BY seen LIMIT 1"
        self._db.write(f"DELETE FROM nodes WHERE node = ({oldest})")
