"""Lists and changes invites, nodes and bans of the access store for the organizer's panel."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire_coordinator.hall.access.invite_strings import make_invite
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.run import Run
from thinwire_proto.clean_text import clean_name, clean_text
from thinwire_proto.errors import ConfigError

NODES_MAX = 200
"""Nodes in one answer: those that joined last."""
BY = "organizer"

Plain = dict[str, Any]


@dataclass(frozen=True)
class Standing:
    """The coordinator's trust in a node. trust: 0 to 1; a contribution weighs so much of its samples' weight."""

    active: bool
    trust: float | None = None
    suspicion: str = ""


AWAY = Standing(False)


class AccessPanel:
    """A `Panel` over the access store and the swarm.

    `standings` and `pardon` belong to the event loop. The other methods read and write a file, and may run on any
    thread."""

    def __init__(self, store: AccessStore, folder: Path, run: Run, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._folder = folder
        self._run = run
        self._now = now

    def standings(self) -> dict[str, Standing]:
        return {
            node: Standing(member.active, *(self._run.stands(node) or (None, "")))
            for node, member in self._run.view.members.items()
        }

    def pardon(self, node: str) -> Plain:
        """Forget everything against a node."""
        if node not in self._run.view.members:
            raise ConfigError(f"node {node[:8]} has not joined since the coordinator started")
        self._run.pardon(node)
        return {"ok": True}

    def state(self, standings: Mapping[str, Standing]) -> Plain:
        now = self._now()
        bans = self._store.bans.holding(now)
        nodes = self._store.nodes.all()
        invites = [
            {
                "number": one.number,
                "name": one.name,
                "uses": one.uses,
                "uses_max": one.uses_max,
                "expires": one.expires,
                "state": one.state(now),
            }
            for one in self._store.invites.all()
        ]
        rows = []
        for one in reversed(nodes[-NODES_MAX:]):
            standing, ban = standings.get(one.node, AWAY), bans.get(one.node)
            rows.append(
                {
                    "node": one.node,
                    "name": clean_name(one.name) or one.node[:8],
                    "address": clean_text(one.address),
                    "invite": one.invite,
                    "seen": one.seen,
                    "active": standing.active,
                    "trust": standing.trust,
                    "reason": clean_text(ban.reason if ban is not None else standing.suspicion),
                    "banned": ban is not None,
                    "banned_until": ban.until if ban is not None else None,
                }
            )
        return {"invites": invites[::-1], "nodes": rows, "nodes_known": len(nodes)}

    def invite(self, name: str, uses: int | None, hours: float | None) -> Plain:
        """Make an invite. Its string is shown once, because the store keeps only its hash."""
        now = self._now()
        expires = None if hours is None else now + 3600 * hours
        record, invite = make_invite(
            self._store, self._folder, now, name=clean_name(name), uses_max=uses, expires=expires
        )
        return {"number": record.number, "invite": str(invite)}

    def revoke(self, number: int) -> Plain:
        if self._store.invites.of(number) is None:
            raise ConfigError(f"there is no invite {number}")
        self._store.revoke(number, self._now(), by=BY)
        return {"ok": True}

    def ban(self, node: str, reason: str) -> Plain:
        """Ban a node until the organizer lifts it."""
        self._check(node)
        self._store.bans.ban(node, None, clean_text(reason), BY, self._now())
        return {"ok": True}

    def unban(self, node: str, reason: str) -> Plain:
        self._check(node)
        if not self._store.bans.unban(node, clean_text(reason), BY, self._now()):
            raise ConfigError(f"node {node[:8]} is not banned")
        return {"ok": True}

    def _check(self, node: str) -> None:
        if self._store.nodes.of(node) is None:
            raise ConfigError(f"no node {node[:8]} has joined this run")
