"""The standings of nodes in access.sqlite, as JSON that `trust.standing` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from thinwire_coordinator.hall.access.database import Database

STANDINGS_MAX = 1 << 16
"""Standings that are kept. Those that did not change for longest go first."""


class StandingTable:
    def __init__(self, database: Database, standings_max: int = STANDINGS_MAX) -> None:
        self._db = database
        self._standings_max = standings_max

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
            if self._db.execute("SELECT count(*) FROM standings")[0][0] > self._standings_max:
                keep = "SELECT number FROM standings ORDER BY number DESC LIMIT ?"
                self._db.write(f"DELETE FROM standings WHERE number NOT IN ({keep})", self._standings_max)
