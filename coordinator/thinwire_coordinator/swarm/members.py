"""Who is here: one member for each node that joined, with what it gave and what it got.

The contract bounds how many there are. When a newcomer finds every place taken, the member makes room that was heard of
longest ago, among those that have no call open.
"""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass, field

from thinwire_proto.wire.service_pb2 import Announcement

NODE_ID = re.compile(r"[0-9a-f]{32}")
NAME_LENGTH_MAX = 64


class NewestAnnouncement:
    """Holds the newest announcement for one reader; an older one that was not read yet is dropped."""

    def __init__(self) -> None:
        self._value: Announcement | None = None
        self._changed = asyncio.Event()

    def put(self, announcement: Announcement) -> None:
        self._value = announcement
        self._changed.set()

    async def get(self) -> Announcement:
        await self._changed.wait()
        self._changed.clear()
        assert self._value is not None
        return self._value


@dataclass
class Member:
    node_id: str
    name: str
    session: str
    announcements: NewestAnnouncement | None = None  # while it attends
    calls: set[str] = field(default_factory=set)  # of this session that are open: one of each kind
    leaving: bool = False  # it has said so
    heard: int = 0  # when it last made a call: larger is later

    @property
    def active(self) -> bool:
        """Whether it attends, and so takes part."""
        return self.announcements is not None


@dataclass
class Members:
    """All nodes that this process has seen, by node id and by session; as many as the contract allows."""

    nodes_max: int
    randomness: random.Random = field(default_factory=random.SystemRandom)
    by_id: dict[str, Member] = field(default_factory=dict)
    by_session: dict[str, Member] = field(default_factory=dict)
    _calls: int = 0

    def join(self, node_id: str, name: str) -> Member | None:
        """A session for a node, in place of the one that it had; None if the swarm is full of others."""
        member = self.by_id.get(node_id)
        if member is None:
            if len(self.by_id) >= self.nodes_max and not self._forget_one():
                return None
            member = self.by_id[node_id] = Member(node_id, "", "")
        self.by_session.pop(member.session, None)
        member.name = readable(name) or node_id[:8]
        member.session = f"{self.randomness.getrandbits(128):032x}"
        member.calls = set()
        member.leaving = False
        self.by_session[member.session] = member
        self._hear(member)
        return member

    def of_session(self, session: str) -> Member | None:
        """Who makes a call in this session, if it is the newest one of a member."""
        member = self.by_session.get(session)
        if member is not None:
            self._hear(member)
        return member

    def _hear(self, member: Member) -> None:
        self._calls += 1
        member.heard = self._calls

    def _forget_one(self) -> bool:
        away = [member for member in self.by_id.values() if not (member.active or member.calls)]
        if not away:
            return False
        member = min(away, key=lambda member: member.heard)
        del self.by_id[member.node_id]
        self.by_session.pop(member.session, None)
        return True


def readable(name: str) -> str:
    """A name that can be printed on any terminal: control characters out, and not too long."""
    return "".join(letter for letter in name if letter.isprintable())[:NAME_LENGTH_MAX].strip()
