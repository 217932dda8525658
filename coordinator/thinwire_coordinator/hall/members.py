"""The members of a swarm: one for each node that joined, with its session; and who gives its place away.

The contract bounds the number of members. When the swarm is full, a new node replaces the member with the oldest last
call, among those that have no call open. If all have one open, `decide` says who gives its place away.

The problem: identities cost nothing, and a swarm has `round.nodes_max` places. If whoever comes first keeps its place,
identities that contribute nothing shut everybody else out, nodes that restart included.

The sketch: places are for those who contribute. While nobody waits, everybody keeps its place. When somebody does, the
first of these who is there gives its place away:

    who wants to join       whose place it takes
    anybody                 a node without a counted contribution for IDLE_ROUNDS rounds, the one idle for longest
    with counted rounds     a node that was never counted, the one that has been here for longest
    without                 a node that was never counted, of the network that holds most of such places, if that is at
                            least two more than the network of the newcomer holds

A node that was counted is idle in rounds that were sealed without it: void rounds count against nobody. One that never
was is idle in all rounds. `decide` uses no clock, no network and no disk.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from thinwire_coordinator.hall.access.door import Denied
from thinwire_coordinator.hall.events import BeatSealed, Event, RoundSealed
from thinwire_proto.clean_text import clean_name
from thinwire_proto.identity.keys import PublicKey
from thinwire_proto.identity.statements import session_of
from thinwire_proto.limits import PLACE_KEPT_S

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


IDLE_ROUNDS = 64
"""Rounds without a counted contribution after which a node gives its place to one that waits."""
FAIR_DIFFERENCE = 2
"""Places that a network must hold more than another before it gives one away: with 1, they would change for ever."""


@dataclass(frozen=True)
class Candidate:
    """A node that wants to join, or one that holds a place. group: its network, see `addresses.group_of`; empty if
    addresses say nothing. has_counted: whether it has a counted contribution. rounds, seconds: since its newest one, or
    since it came."""

    node: str
    group: str = ""
    has_counted: bool = False
    rounds: int = 0
    seconds: float = 0.0

    @property
    def is_idle(self) -> bool:
        return self.rounds >= IDLE_ROUNDS and self.seconds >= PLACE_KEPT_S


@dataclass(frozen=True)
class GivenAway:
    """The node that gives its place away, and why, in words."""

    node: str
    reason: str


def decide(comes: Candidate, held: Iterable[Candidate]) -> GivenAway | None:
    """Whose place a node takes in a full swarm; None if it has to wait."""
    places = list(held)
    longest = sorted(places, key=lambda one: (one.has_counted, -one.rounds, one.node))
    if idle := next((one for one in longest if one.is_idle), None):
        return GivenAway(idle.node, f"nothing of it was counted in {idle.rounds} rounds, and another node waits")
    newcomers = [one for one in longest if not one.has_counted]
    if comes.has_counted:
        reason = "a node with counted rounds has come back, and nothing of this one was counted yet"
        return GivenAway(newcomers[0].node, reason) if newcomers else None
    of_network = Counter(one.group for one in newcomers if one.group)
    if not comes.group or not of_network:
        return None
    most = max(of_network, key=lambda group: (of_network[group], group))
    if of_network[most] < of_network[comes.group] + FAIR_DIFFERENCE:
        return None
    reason = f"its network holds {of_network[most]} places without a counted contribution, and another network waits"
    return GivenAway(next(one.node for one in newcomers if one.group == most), reason)


class Places:
    """The places of the members. now: see `Moment`."""

    def __init__(self, members: Members, now: Callable[[], Moment]) -> None:
        self._members = members
        self.now = now

    def watch(self, event: Event) -> None:
        """A node whose contribution is counted keeps its place."""
        if isinstance(event, RoundSealed | BeatSealed):
            now = self.now()
            for entry in event.counted:
                if (member := self._members.by_id.get(entry.node)) is not None:
                    member.has_counted, member.since = True, now

    def came(self, member: Member, group: str, *, has_counted: bool) -> None:
        """A node has joined. One that joins again is no less idle than before."""
        member.group, member.has_counted = group, member.has_counted or has_counted
        member.since = member.since or self.now()

    def given_to(self, node: str, group: str, *, has_counted: bool) -> GivenAway | None:
        """Whose place a node takes that finds the swarm full; None if it has to wait."""
        now = self.now()
        return decide(Candidate(node, group, has_counted), (_holder(one, now) for one in self._members.by_id.values()))


def _holder(member: Member, now: Moment) -> Candidate:
    since = member.since or now
    rounds = now.sealed - since.sealed if member.has_counted else now.rounds - since.rounds
    return Candidate(member.node_id, member.group, member.has_counted, rounds, now.at - since.at)
