"""Places: who gives its place away when the swarm is full and another node wants to join.

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

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from thinwire_coordinator.hall.events import BeatSealed, Event, RoundSealed
from thinwire_coordinator.hall.members import Member, Members, Moment
from thinwire_proto.limits import PLACE_KEPT_S

IDLE_ROUNDS = 64
"""Rounds without a counted contribution after which a node gives its place to one that waits."""
FAIR_DIFFERENCE = 2
"""Places that a network must hold more than another before it gives one away: with 1, they would change for ever."""


@dataclass(frozen=True)
class Candidate:
    """A node that wants to join, or one that holds a place. group: its network, see `trust.address_groups`; empty if
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
