"""The directory of a gossip run: who takes part, under which number, and who mixes with whom. Pure.

The problem: all ends of all edges must change to a new topology in the same iteration, but nodes are in different ones,
and hear of it only when they report next.

What fails: a topology that holds at once tears the turns that are under way. One that waits until all have confirmed
it waits for the node whose death was the reason.

The sketch: a topology has a number and the iteration in which it begins. That is the furthest iteration that was
reported, and a lead: what the fastest node does in LEAD_BEATS beats. Within these, each node reports at least once and
gets it. One that does not is missed by its new peers, and the next topology leaves it out. Changes are collected, so
there is at most one topology a beat.

    waiting ──enough nodes──▶ training ──all have done their iterations──▶ collecting ──mean sealed──▶ complete

Nothing here is lost with the process: the `plain` forms are on disk before a node is told a number or a topology.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from thinwire_coordinator.gossip.formation import FormedTopology, Plan, form_at
from thinwire_coordinator.gossip.participants import Heard, Participant
from thinwire_coordinator.gossip.settings import GossipSettings
from thinwire_proto.errors import Damaged
from thinwire_proto.gossip.assignment import Assignment

LEAD_BEATS = 3
"""One since the furthest node reported, one until the others report, and one if a report is late."""
LEAD_LEAST = 2
"""Iterations of the lead beside what is measured."""
UNMEASURED_BEATS = 4
"""Nodes that have done no iteration within so many beats are slow enough for the least lead."""
MISSES = 2
"""Reports in which a member is missed, of different peers if it has as many, before a topology leaves it out."""
REST_DOUBLINGS_MAX = 6
"""A member that was left out rests for two beats, then four, eight, up to 128."""
FORGOTTEN_FACTOR = 2
"""Absent nodes keep their numbers up to this multiple of nodes_max; then those that were away longest lose them."""
NAMED_MAX = 8
"""Members that a reason names."""


class Phase(Enum):
    TRAINING = "training"
    COLLECTING = "collecting"
    COMPLETE = "complete"


@dataclass(frozen=True)
class Wait:
    """Nothing is to be done."""

    reason: str


@dataclass(frozen=True)
class Collect:
    """All have done their iterations: from now on, nodes deposit their parameters."""

    reason: str


Decision = Wait | Collect | Plan


class Directory:
    """All that the coordinator knows of the members, and the newest topology."""

    def __init__(self, settings: GossipSettings) -> None:
        self.settings = settings
        self.phase = Phase.TRAINING
        self.topology: FormedTopology | None = None
        self.by_node: dict[str, Participant] = {}
        self._by_member: dict[int, Participant] = {}
        self._members: frozenset[int] = frozenset()  # of the newest topology
        self._next_member = 0
        self._formed_at = 0.0
        self.reach = 0
        """Iterations that leases have allowed to any node. A node does no more of them before its next answer."""

    # what is heard

    def why_refuse(self, heard: Heard) -> str:
        """The reason to refuse a report, which then changes nothing; empty if there is none."""
        if heard.topology > self.number:
            return f"the report names topology {heard.topology}, but this coordinator's newest is {self.number}"
        if heard.iteration > self.settings.steps:
            return f"the report names iteration {heard.iteration}, but the run has {self.settings.steps}"
        known = self.by_node.get(heard.node)
        if known is not None and heard.iteration < known.iteration and not self.begins_anew(heard):
            return (
                f"the report names iteration {heard.iteration}, but this node has reported {known.iteration} before: "
                "its state is older than its reports; remove gossip.safetensors from its state directory, and it "
                "begins anew with the parameters of a peer"
            )
        return ""

    def begins_anew(self, heard: Heard) -> bool:
        """Whether a node that has done iterations has lost its journal, as its report tells."""
        known = self.by_node.get(heard.node)
        return known is not None and heard.iteration == 0 < known.iteration and heard.is_genesis

    def hear(self, heard: Heard, now: float) -> Participant:
        """Take a report that `why_refuse` does not refuse. The first one of a node gives it its member number, and one
        that begins anew another number: its peers hold copies that it has lost, so its edges have to end."""
        if self.begins_anew(heard):
            del self._by_member[self.by_node.pop(heard.node).member]
        known = self.by_node.get(heard.node)
        if known is None:
            known = Participant(heard.node, self._next_member)
            self._next_member += 1
            self._keep(known)
            self._forget()
        enters = known.enters_at is not None and known.enters_at <= heard.iteration
        if enters or not known.is_present or known.heard_at is None:
            known.marked_iteration, known.marked_at, known.since = heard.iteration, now, now
        known.enters_at = None if enters else known.enters_at
        known.is_present, known.heard_at, known.is_restored = True, now, False
        if (heard.address, heard.public_key) != (known.address, known.public_key):
            known.address, known.public_key, known.placed_at = heard.address, heard.public_key, self.number + 1
        known.iteration = heard.iteration
        self.reach = max(self.reach, heard.iteration)
        known.measure(now, self.settings.beat_s / 2)
        if self.topology is not None and known.member in self._members:
            for missed in self.topology.peers(known.member).intersection(heard.missed):
                self._missed(self._by_member.get(missed), known.member, now)
        return known

    def pace_of(self, known: Participant) -> float | None:
        """Iterations a second of a node: measured, or at most that, by its computing or by the others; None if nothing
        is known."""
        if known.pace:
            return known.pace
        if known.computing_s:
            return 1 / known.computing_s
        return max((one.pace for one in self.running if one.pace), default=None)

    def allow(self, known: Participant, samples: int) -> None:
        """A node is told that its lease has so many samples, from the iteration on that it has reported."""
        self.reach = max(self.reach, known.iteration + self.settings.iterations_of(samples))

    def deposits(self, node: str, now: float) -> None:
        """The node has just had its turn to send its parameters at the end, and could not report meanwhile."""
        if (known := self.by_node.get(node)) is not None:
            known.is_present, known.heard_at = True, now

    def leave(self, node: str) -> None:
        if (known := self.by_node.get(node)) is not None:
            known.is_present = False

    def _missed(self, known: Participant | None, reporter: int, now: float) -> None:
        if known is None or known.is_restored or now < known.rests_until:
            return
        assert self.topology is not None
        known.missed_by.append(reporter)
        reporters = min(MISSES, len(self.topology.peers(known.member)))
        if len(known.missed_by) >= MISSES and len(set(known.missed_by)) >= reporters:
            known.missed_by.clear()
            known.missed_at = now
            known.rests_until = now + self.settings.beat_s * 2 ** (1 + min(known.times_missed, REST_DOUBLINGS_MAX))
            known.times_missed += 1
        del known.missed_by[:-MISSES]

    def _keep(self, one: Participant) -> None:
        self.by_node[one.node] = self._by_member[one.member] = one

    def _forget(self) -> None:
        """Keep the numbers within their bound."""
        while len(self.by_node) > FORGOTTEN_FACTOR * self.settings.nodes_max:
            away = [one for one in self.by_node.values() if not one.is_present]
            oldest = min(away or self.by_node.values(), key=lambda one: (one.heard_at or 0.0, one.member))
            del self.by_node[oldest.node], self._by_member[oldest.member]

    # what is decided

    def lose(self, now: float) -> list[str]:
        """The nodes that are lost from now on: those that have been silent for too long."""
        silent = [one for one in self.present if now - (one.heard_at or 0.0) >= self.settings.lost_after_s]
        for one in silent:
            one.is_present = False
        return [one.node for one in silent]

    def decide(self, now: float) -> Decision:
        """Say what is due. A plan is to be formed (`form`) and then begun."""
        if self.phase is not Phase.TRAINING:
            return Wait(f"the run is {self.phase.value}")
        if self.missing:
            return Wait(f"waiting for {self.missing} more node{'s' if self.missing > 1 else ''}")
        if self.topology is None:
            return self._plan(0, (), f"{len(self.present)} nodes begin", {one.member for one in self.present})
        entered = self.entered
        if entered and all(one.iteration >= self.settings.steps for one in entered):
            return Collect(f"{len(entered)} nodes have done all {self.settings.steps} iterations")
        wanted = {one.member for one in self.present if not one.rests(now)}
        if wanted == self._members:
            return Wait("no member has come or gone")
        why_not = self._why_keep(wanted, now)
        return Wait(why_not) if why_not else self._next(wanted, now)

    def why_left_out(self, one: Participant, now: float) -> str:
        """The reason why a node that reports is no member of the newest topology."""
        if one.rests(now):
            return "peers have waited for its messages in vain, so it is left out for a while"
        return getattr(self.decide(now), "reason", "")

    def _why_keep(self, wanted: set[int], now: float) -> str:
        """The reason to keep the newest topology although other members are wanted; empty if there is none."""
        if not wanted:
            return "no node is there"
        return "the newest topology is younger than a beat" if now - self._formed_at < self.settings.beat_s else ""

    def _next(self, wanted: set[int], now: float) -> Decision:
        assert self.topology is not None
        reason = _change(wanted - self._members, self._members - wanted, self._by_member)
        entered = self.entered
        waiting = {one.member for one in self.running} - {one.member for one in entered}
        if not entered:
            # nobody could pass parameters on, so those that were furthest begin with their own
            furthest = max(self._by_member[member].iteration for member in wanted)
            behind = {member for member in wanted if self._by_member[member].iteration < furthest}
            return self._plan(furthest, behind, reason, wanted)
        pace = max(one.pace or 0.0 for one in entered)
        if not pace and now - self._formed_at < UNMEASURED_BEATS * self.settings.beat_s:
            return Wait(f"{reason}; the pace of the others is not measured yet")
        start = max(self.ahead, self.topology.plan.start + 1)
        if start >= self.settings.steps:
            return Wait(f"{reason}; a new topology would begin after the last iteration")
        return self._plan(start, wanted - self._members | wanted & waiting, reason, wanted)

    def _plan(self, start: int, adopting: Iterable[int], reason: str, members: Iterable[int]) -> Plan:
        return Plan(self.number + 1, start, tuple(sorted(members)), frozenset(adopting), reason)

    def begin(self, formed: FormedTopology, now: float) -> None:
        """Make a topology the newest."""
        self.topology, self._formed_at = formed, now
        self._members = frozenset(formed.plan.members)
        for one in self.by_node.values():
            one.missed_by.clear()
            if one.member not in formed.plan.adopting:
                one.enters_at = None
            elif one.enters_at is None and one.iteration < formed.plan.start:
                one.enters_at = formed.plan.start

    # what is known

    @property
    def present(self) -> list[Participant]:
        return [one for one in self.by_node.values() if one.is_present]

    @property
    def running(self) -> list[Participant]:
        """The present members of the newest topology."""
        return [one for one in self.present if one.member in self._members]

    @property
    def entered(self) -> list[Participant]:
        """Those of them that have begun. The others wait for a peer's parameters, and may not hear one before the end:
        so nobody waits for them."""
        return [one for one in self.running if one.enters_at is None]

    @property
    def ahead(self) -> int:
        """An iteration that no member reaches before all of them have reported; 0 without members."""
        entered = self.entered
        if not entered:
            return 0
        pace = max(one.pace or 0.0 for one in entered)
        lead = LEAD_LEAST + math.ceil(LEAD_BEATS * self.settings.beat_s * pace)
        return max(one.iteration for one in entered) + lead

    @property
    def number(self) -> int:
        """The number of the newest topology; 0 before the first."""
        return self.topology.plan.number if self.topology else 0

    @property
    def missing(self) -> int:
        """Nodes that the first topology waits for; 0 once it is there."""
        return max(0, self.settings.nodes_least - len(self.present)) if self.topology is None else 0

    def unknown_places(self, assignment: Assignment, topology: int) -> list[int]:
        """The peers of an assignment, ascending, whose places a node does not know that has this older topology; 0 for
        none."""
        peers = []
        for peer, since in sorted(assignment.since.items()):
            known = self.of_member(peer)
            if since > topology or (known is not None and known.placed_at > topology):
                peers.append(peer)
        return peers

    def runs(self, one: Participant) -> bool:
        """Whether a node is a member of the newest topology."""
        return one.member in self._members

    def of_member(self, member: int) -> Participant | None:
        """The node with this number; None if it was forgotten."""
        return self._by_member.get(member)

    # disk

    def plain_topology(self) -> list[Any]:
        """The newest topology as nested lists of numbers and strings; empty without one. It changes with `begin`."""
        if self.topology is None:
            return []
        plan = self.topology.plan
        edges = [[*edge, since] for edge, since in sorted(self.topology.edges.items())]
        return [plan.number, plan.start, list(self.topology.places), sorted(plan.adopting), plan.reason, edges]

    def plain_members(self) -> list[Any]:
        """All else that outlives the process."""
        return [self._next_member, self.phase.value, [one.plain() for one in self.by_node.values()], self.reach]

    @classmethod
    def from_plain(cls, settings: GossipSettings, topology: Any, members: Any, now: float) -> Directory:
        """Restore a directory; those that were present have the time of a lost node to report. Raises Damaged."""
        directory = cls(settings)
        try:
            directory._next_member, phase, participants, *reach = members
            directory.reach = reach[0] if reach else 0  # format 1 began without it
            directory.phase = Phase(phase)
            for entry in participants:
                directory._keep(Participant.from_plain(entry, now))
            if topology:
                number, start, places, adopting, reason, edges = topology
                numbers = tuple(sorted(member for member in places if member is not None))
                plan = Plan(number, start, numbers, frozenset(adopting), reason)
                older = {(one, other): since for one, other, since in edges}
                directory.topology = form_at(settings.topology, plan, tuple(places), older)
                directory._formed_at = now
                directory._members = frozenset(plan.members)
        except (TypeError, ValueError) as error:
            raise Damaged(f"cannot read the directory of members on disk: {error}") from None
        return directory


def _change(came: set[int], gone: Iterable[int], known: Mapping[int, Participant]) -> str:
    """The nodes that came and went, by the first digits of their ids; of a thousand nodes many may at once."""
    parts = []
    for word, members in (("came", came), ("gone", gone)):
        if named := sorted(members):
            rest = ", …" if len(named) > NAMED_MAX else ""
            names = [known[one].node[:8] if one in known else f"member {one}" for one in named[:NAMED_MAX]]
            parts.append(f"{word}: {', '.join(names)}{rest}")
    return "; ".join(parts)
