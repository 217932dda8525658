"""A gossip run under virtual time, with the coordinator's directory: nodes report in each beat, and their
answers bring the topologies. Each turn that a node mixes is kept, so that both ends can be compared.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from support.directories import assigned
from support.member_world import ANNOUNCE_S, MemberWorld, SimulatedNode
from thinwire_coordinator.gossip.beats import BeatAnswer
from thinwire_coordinator.gossip.calls import beat_reply
from thinwire_coordinator.gossip.directory import Collect, Directory
from thinwire_coordinator.gossip.formation import Plan, form
from thinwire_coordinator.gossip.participants import Heard, Participant
from thinwire_coordinator.gossip.settings import LEASE_RUNS_MAX, GossipSettings
from thinwire_coordinator.hall.leases import SampleRange
from thinwire_proto.gossip.iteration import Mix, Turn
from thinwire_proto.gossip.member_state import MemberSettings, MemberState
from thinwire_proto.gossip.message import SNAPSHOT, Message

DECISIONS = 10
"""The directory decides so often in a beat. The coordinator does it with each report."""
LONGEST_LEASE = (SampleRange((1 << 64) - 1, (1 << 32) - 1),) * LEASE_RUNS_MAX
"""An answer's lease takes no more bytes."""
LINE_LOST_S = 3.0
"""A node hears after so long that a peer's process has ended."""
KEY, ADDRESS = bytes(32), "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535"


@dataclass
class DirectedNode(SimulatedNode):
    """heard: peers whose messages have come. lost: peers whose lines are lost. reported: how many of `missing` the
    coordinator knows. iteration_saved: of the newest state on disk. mixed: each turn with what it added to x, in order;
    of these `mixed_saved` are in the state on disk, and `mixed_kept` in the newest state."""

    heard: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    reported: int = 0
    iteration_saved: int = 0
    mixed: list[tuple[Turn, Tensor]] = field(default_factory=list)
    mixed_kept: int = 0
    mixed_saved: int = 0

    @property
    def adopted(self) -> int:
        """The iteration in which it has last taken the parameters of a peer; -1 if it never has."""
        return self.member._adopted

    def keep(self) -> MemberState:
        self.mixed_kept = len(self.mixed)
        return super().keep()


class DirectedWorld(MemberWorld):
    """beat_s: of the coordinator. answers: bytes of each answer without an assignment; assigning: of
    each with one. reasons: why each topology was formed. messages: all that were sent; snapshots: those among them that
    begin an edge."""

    def __init__(self, nodes: int, settings: MemberSettings, *, beat_s: float, nodes_max: int, **given: Any) -> None:
        self.answers: list[int] = []
        self.assigning: list[int] = []
        self.messages = self.snapshots = 0
        self.reasons: list[str] = []
        self.all: dict[int, DirectedNode] = {}
        self.is_over = False  # whether the coordinator collects parameters
        self._beat_s = beat_s
        self._offsets = random.Random(given.get("seed", 0))
        super().__init__(nodes, settings, **given)
        kind, steps = self._kind, self._iterations
        self.directory = Directory(GossipSettings(kind, nodes, nodes_max, beat_s, steps, 4, 1.0, 60.0, "sign"))
        self.at(0.0, self._decide)

    def come(self) -> int:
        """A newcomer."""
        number, self._next_number = self._next_number, self._next_number + 1
        self.nodes[number] = self._made(number)
        self._report(number)
        return number

    def kill(self, number: int) -> None:
        super().kill(number)
        life = self.all[number].life
        self.at(self.now + LINE_LOST_S, partial(self._lose_lines, number, life))

    def _lose_lines(self, number: int, life: int) -> None:
        for node in self.all.values():
            if self.all[number].life == life and node.is_alive and number in node.member.peers:
                node.lost.add(number)
                self._apply(node, node.member.absent(number))

    def restart(self, number: int) -> None:
        node = self.all[number]
        for other in self.all.values():
            other.lost.discard(number)
        del node.mixed[node.mixed_saved :]  # it mixes these again, or what it mixes instead
        super().restart(number)

    # the coordinator

    def _open(self) -> None:
        for number in sorted(self.nodes):  # the directory numbers them in the order of their first reports
            self.at(0.0, partial(self._report, number, self._offsets.uniform(0.0, self._beat_s)))

    def _made(self, number: int) -> DirectedNode:
        self.all[number] = DirectedNode(number, super()._made(number).member)
        return self.all[number]

    def _decide(self) -> None:
        self.directory.lose(self.now)
        decision = self.directory.decide(self.now)
        if isinstance(decision, Plan):
            self.directory.begin(form(self._kind, decision, self.directory.topology), self.now)
            self.reasons.append(decision.reason)
        self.is_over = isinstance(decision, Collect)
        if not self.is_over:
            self.at(self.now + self._beat_s / DECISIONS, self._decide)

    def _report(self, number: int, next_s: float | None = None) -> None:
        node = self.all[number]
        if node.is_alive:
            missed = set(node.missing[node.reported :]) | node.lost
            node.reported = len(node.missing)
            heard = Heard(
                str(number), node.member.topology, node.iteration_saved, missed & set(node.member.peers), ADDRESS, KEY
            )
            assert not (reason := self.directory.why_refuse(heard)), reason
            known = self.directory.hear(heard, self.now)
            assert known.member == number
            known.computing_s = self._compute_s(number, node.iteration_saved)
            self._answer(node)
        if not self.is_over:
            self.at(self.now + (self._beat_s if next_s is None else next_s), partial(self._report, number))

    def _answer(self, node: DirectedNode) -> None:
        directory = self.directory
        known = directory.by_node[str(node.number)]
        assignment = assigned(directory, known.node) if node.member.topology != directory.number else None
        unknown = directory.unknown_places(assignment, node.member.topology) if assignment else ()
        peers = [Participant("", peer, address=ADDRESS, public_key=KEY) for peer in unknown]
        seed = (1 << 64) - 1
        reply = beat_reply(BeatAnswer("training", "", self._beat_s, LONGEST_LEASE, assignment, peers, seed))
        (self.assigning if assignment else self.answers).append(reply.ByteSize())
        if assignment is not None:
            self.at(self.now + ANNOUNCE_S, partial(self._assign, node.number, assignment))

    # the nodes

    def _saved(self, node: SimulatedNode) -> None:
        assert isinstance(node, DirectedNode)
        super()._saved(node)
        node.mixed_saved, node.iteration_saved = node.mixed_kept, node.member.iteration

    def _send(self, source: int, target: int, message: Message) -> None:
        self.messages += 1
        self.snapshots += message.codec == SNAPSHOT
        super()._send(source, target, message)

    def _arrive(self, source: int, target: int, message: Message) -> None:
        self.all[target].heard.add(source)
        super()._arrive(source, target, message)

    def _mix(self, node: SimulatedNode, mix: Mix) -> None:
        assert isinstance(node, DirectedNode)
        for turn in mix.turns:
            before = node.member.x.double()
            super()._mix(node, Mix((turn,), (), ""))
            node.mixed.append((turn, node.member.x.double() - before))
        if node.member.iteration + 1 == self._iterations:
            node.iteration_saved, node.mixed_saved = self._iterations, len(node.mixed)

    # what holds at the end

    def moved(self) -> tuple[Tensor, list[str]]:
        """The sum of what the nodes that live have added to their parameters in turns that both ends have mixed,
        float64 [parameters]; and the turns that one end has not. A node that takes the parameters of a peer, because a
        topology had left it out, is a new one from then on."""
        ends: dict[tuple[int, int, int, int], list[Tensor]] = defaultdict(list)
        for number, node in self.nodes.items():
            for turn, added in self.all[node.number].mixed:
                began = max(self.all[end].adopted for end in (number, turn.peer))
                if turn.peer in self.nodes and turn.iteration >= began:
                    low, high = sorted((number, turn.peer))
                    ends[turn.topology, turn.iteration, low, high].append(added)
        alone = [
            f"topology {topology}, iteration {iteration}: {low} and {high}"
            for (topology, iteration, low, high), of in ends.items()
            if len(of) != 2
        ]
        return torch.stack([of[0] + of[1] for of in ends.values() if len(of) == 2]).sum(0), alone
