"""The members of a swarm: one for each node that joined, with its session.

The contract bounds the number of members. When the swarm is full, a new node replaces the member with the oldest last
call, among those that have no call open. If all have one open, `places` says who gives its place away.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from thinwire_coordinator.hall.access.refusals import Denied
from thinwire_proto.clean_text import clean_name
from thinwire_proto.identity.keys import PublicKey
from thinwire_proto.identity.statements import session_of

Message = TypeVar("Message")


class Newest(Generic[Message]):
    """A mailbox for one reader that holds only the newest message and drops older unread ones."""

    def __init__(self) -> None:
        self._value: Message | None = None
        self._changed = asyncio.Event()
        self._ended = False

    def put(self, message: Message) -> None:
        self._value = message
        self._changed.set()

    def end(self) -> None:
        """Let the reader stop."""
        self._ended = True
        self._changed.set()

    async def get(self) -> Message | None:
        """Wait for the next message; None at the end."""
        await self._changed.wait()
        self._changed.clear()
        if self._ended:
            return None
        assert self._value is not None
        return self._value


@dataclass(frozen=True)
class Moment:
    """A moment of a run. rounds: opened by then, void ones included, or beats. sealed: rounds or beats
    that were sealed by then. at: seconds on the coordinator's clock."""

    rounds: int
    sealed: int
    at: float


@dataclass
class Member:
    """A node that joined, and its newest session.

    session: names the session: the SHA-256, in hexadecimal, of the secret that its calls carry. Whoever reads the
    coordinator's memory or logs cannot call in its name.
    """

    public_key: PublicKey
    node_id: str
    name: str
    session: str
    replaced: str = ""  # the session before this one, if joining again ended it
    announcements: Newest[Any] | None = None  # set while the node attends
    calls: set[str] = field(default_factory=set)  # open calls of this session; at most one of each kind
    leaving: bool = False  # whether it has called Leave
    expelled: Denied | None = None  # why the coordinator has ended this session
    group: str = ""  # of its address
    has_counted: bool = False  # whether a contribution of it was ever counted, in this process or an earlier one
    since: Moment | None = None  # when one was counted last, or when it came
    heard: int = 0  # sequence number of its last call
    reports: bool = False  # whether its reports come, in a gossip run

    @property
    def active(self) -> bool:
        """Whether the node takes part: attends rounds, or reports, as its run's exchange has it."""
        return self.announcements is not None or self.reports


@dataclass
class Members:
    """Up to `nodes_max` nodes that joined since the process started, by node id and by session."""

    nodes_max: int
    randomness: random.Random = field(default_factory=random.SystemRandom)
    by_id: dict[str, Member] = field(default_factory=dict)
    by_session: dict[str, Member] = field(default_factory=dict)
    _replaced: set[str] = field(default_factory=set)  # of each member, the session before its newest one
    _calls: int = 0

    def join(self, key: PublicKey, name: str) -> tuple[Member, str] | None:
        """Give a node a new session in place of its old one, with its secret. Return None if the swarm is full."""
        member = self.by_id.get(key.node_id)
        if member is None:
            if len(self.by_id) >= self.nodes_max and not self._forget_one():
                return None
            member = self.by_id[key.node_id] = Member(key, key.node_id, "", "")
        self._replaced.discard(member.replaced)
        if self.by_session.pop(member.session, None) is not None:
            member.replaced = member.session
            self._replaced.add(member.replaced)
        secret = f"{self.randomness.getrandbits(128):032x}"
        member.name = clean_name(name) or member.node_id[:8]
        member.session = _hashed(secret)
        member.calls = set()
        member.leaving = False
        member.expelled = None
        self.by_session[member.session] = member
        self._hear(member)
        return member, secret

    def expel(self, node_id: str, denied: Denied) -> Member | None:
        """End a node's session. Returns the member, or None if the node has no session."""
        member = self.by_id.get(node_id)
        if member is None or self.by_session.pop(member.session, None) is None:
            return None
        member.expelled = denied
        return member

    def forget(self, member: Member) -> None:
        """Free the place of a member, and end its session if it has one."""
        del self.by_id[member.node_id]
        self._replaced.discard(member.replaced)
        self.by_session.pop(member.session, None)

    def of_secret(self, secret: str) -> Member | None:
        """The member whose newest session has this secret; records that the member made a call."""
        member = self.by_session.get(_hashed(secret))
        if member is not None:
            self._hear(member)
        return member

    def was_replaced(self, secret: str) -> bool:
        """Whether the session with this secret is over because its node has joined again since."""
        return _hashed(secret) in self._replaced

    def _hear(self, member: Member) -> None:
        self._calls += 1
        member.heard = self._calls

    def _forget_one(self) -> bool:
        away = [member for member in self.by_id.values() if not (member.active or member.calls)]
        if not away:
            return False
        self.forget(min(away, key=lambda member: member.heard))
        return True


def _hashed(secret: str) -> str:
    return session_of(secret).hex()
