"""A gossip run under virtual time: real members, lines that lose and break, kills, restarts, newcomers.

A step is a function of the parameters and of the iteration, so that a restored node computes the same again.
A directory in a few lines makes topologies, as the coordinator's does.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from thinwire_proto.contract import Parameter
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.assignment import Assignment
from thinwire_proto.gossip.edges import FIRST_TOPOLOGY
from thinwire_proto.gossip.iteration import Mix
from thinwire_proto.gossip.member import Member
from thinwire_proto.gossip.member_state import MemberSettings, MemberState
from thinwire_proto.gossip.message import Message
from thinwire_proto.gossip.topology import Layout, make_topology

ANNOUNCE_S = 0.1
"""The time in which a node hears of a topology."""
RECONNECT_S = 2.0
"""After a line has lost something, it breaks, and is back after this time."""


@dataclass
class SimulatedNode:
    """disk: the newest state that was saved. finished: when each iteration ended, and what it was. kept: by name, a
    tensor of the newest state, its version, and the copy of it."""

    number: int
    member: Member
    disk: MemberState | None = None
    is_alive: bool = True
    life: int = 0
    finished: list[tuple[float, int]] = field(default_factory=list)
    heads: dict[int, bytes] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    awaits_since: float | None = None
    waited_s: list[float] = field(default_factory=list)
    is_begun: bool = False
    kept: dict[str, tuple[Tensor, int, Tensor]] = field(default_factory=dict)
    unreadable: dict[int, str] = field(default_factory=dict)  # peers that it has left out, and why

    def keep(self) -> MemberState:
        """A copy of the member's state. Only tensors that have changed since the last one are copied."""
        state, before = self.member.state(), self.kept
        self.kept = {}
        for name, tensor in state.tensors.items():
            old = before.get(name)
            version = tensor._version
            unchanged = old is not None and old[0] is tensor and old[1] == version
            self.kept[name] = old if old is not None and unchanged else (tensor, version, tensor.clone())
        return MemberState(state.numbers, {name: copy for name, (_, _, copy) in self.kept.items()})


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for cycles meanwhile: with a thousand members alive it takes most of the time, and there are none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class MemberWorld:
    """nodes: how many begin. compute_s, line_s: how long things take. sending_s: for which a message occupies the line
    of its sender before, and holds up its next one. lost: probability that a message is lost, and then its line breaks
    for RECONNECT_S. step: the step of a node at x in an iteration. hostile: by node, what changes its parameters before
    each of its messages is made; others may leave it out."""

    def __init__(
        self,
        nodes: int,
        settings: MemberSettings,
        *,
        topology: str = "one-peer-exponential",
        parameters: int = 64,
        seed: int = 0,
        compute_s: Callable[[int, int], float] = lambda node, iteration: 1.0,
        line_s: Callable[[int, int], float] = lambda source, target: 0.2,
        sending_s: Callable[[int, int], float] = lambda source, target: 0.0,
        lost: float = 0.0,
        step: Callable[[int, Tensor, int], Tensor] | None = None,
        iterations: int = 40,
        save_s: float = 0.01,
        hostile: Mapping[int, Callable[[Tensor], object]] | None = None,
    ) -> None:
        self.now = 0.0
        self.layout = TileLayout([Parameter(name="x", shape=(parameters,))])
        self.nodes: dict[int, SimulatedNode] = {}
        self.topology = 0
        settings = replace(settings, iterations=iterations)
        self._settings, self._kind, self._iterations, self._save_s = settings, topology, iterations, save_s
        self._compute_s, self._line_s, self._sending_s, self._lost = compute_s, line_s, sending_s, lost
        self._random = random.Random(seed)
        self._first = torch.randn(parameters, generator=torch.Generator().manual_seed(seed))
        self._step = step or (lambda node, x, iteration: torch.zeros_like(x))
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._since: dict[frozenset[int], int] = {}
        self._broken: dict[frozenset[int], float] = {}
        self._arrives: dict[tuple[int, int], float] = {}
        self._free: dict[int, float] = {}  # when each node's line has carried all messages before
        self._confirmed: dict[tuple[int, int], int] = {}  # of each direction, what has reached the other end
        self._next_number = nodes
        self._hostile = hostile or {}
        for number in range(nodes):
            self.nodes[number] = self._made(number)
        self._open()

    def _made(self, number: int) -> SimulatedNode:
        return SimulatedNode(number, Member(self.layout, self._settings, self._first.clone()))

    def _open(self) -> None:
        """Give all nodes their first topology."""
        self.rewire(start=0)

    # what a test does

    def run(self, until_s: float = float("inf")) -> None:
        with _uncollected():
            while self._events and self._events[0][0] <= until_s:
                self.now, _, event = heapq.heappop(self._events)
                event()

    def at(self, time_s: float, event: Callable[[], object]) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), event))

    def kill(self, number: int) -> None:
        node = self.nodes[number]
        node.is_alive = False
        node.life += 1

    def lose_lines(self, number: int) -> None:
        """All others hear that the process of a node has ended."""
        for node in self.nodes.values():
            if node.is_alive and number in node.member.peers:
                self._apply(node, node.member.absent(number))

    def restart(self, number: int) -> None:
        """Go on from the disk."""
        node = self.nodes[number]
        assert node.disk is not None
        tensors = {name: tensor.clone() for name, tensor in node.disk.tensors.items()}
        node.member = Member.restore(self.layout, self._settings, MemberState(node.disk.numbers, tensors))
        node.is_alive, node.is_begun = True, True
        node.life += 1
        node.awaits_since = None
        lines = {peer for peer, other in self.nodes.items() if number in other.member.peers} | {*node.member.peers}
        for peer in sorted(lines):
            self._confirmed.pop((peer, number), None)  # it may have lost what it had heard since
            self._reconnect(number, peer)
        self._compute(node)

    def join(self, lead: int = 3) -> int:
        """A newcomer, and a new topology that holds from `lead` iterations ahead."""
        number, self._next_number = self._next_number, self._next_number + 1
        self.nodes[number] = self._made(number)
        self.rewire(self.furthest + lead, newcomers={number})
        return number

    def forget(self, number: int, lead: int = 3) -> None:
        """The directory drops a node that does not report any more."""
        del self.nodes[number]
        self.rewire(self.furthest + lead)

    @property
    def furthest(self) -> int:
        return max((node.member.iteration for node in self.nodes.values()), default=0)

    def rewire(self, start: int, newcomers: frozenset[int] | set[int] = frozenset()) -> None:
        """Make a topology of all nodes, and tell them."""
        self.topology += 1
        numbers = sorted(self.nodes)
        topology = make_topology(self._kind, Layout(len(numbers)))
        edges = {
            frozenset((numbers[one], numbers[other])) for one in range(len(numbers)) for other in topology.peers(one)
        }
        self._since = {edge: self._since.get(edge, self.topology) for edge in edges}
        for place, number in enumerate(numbers):
            cycle = tuple(
                {numbers[peer]: weight for peer, weight in mixing.rows[place].items() if peer != place}
                for mixing in topology.mixings
            )
            since = {peer: self._since[frozenset((number, peer))] for turns in cycle for peer in turns}
            assignment = Assignment(self.topology, start, number, cycle, since, adopts=number in newcomers)
            self.at(self.now + ANNOUNCE_S, partial(self._assign, number, assignment))

    def copies(self) -> tuple[int, list[str]]:
        """The number of copies that both ends have brought equally far, and those among them that differ."""
        compared, differing = 0, []
        for number, node in self.nodes.items():
            for peer, edge in node.member._copies.edges.items():
                other = self.nodes[peer].member._copies.edges.get(number) if peer in self.nodes else None
                if other is None or edge.own.sequence != other.theirs.sequence:
                    continue
                compared += 1
                if edge.differences_found or not torch.equal(edge.own.flat, other.theirs.flat):
                    differing.append(f"{number} for {peer}, message {edge.own.sequence}")
        return compared, differing

    # what happens

    def _assign(self, number: int, assignment: Assignment) -> None:
        node = self.nodes.get(number)
        if node is None:
            return
        if not node.is_alive:
            self.at(self.now + 1.0, lambda: self._assign(number, assignment))
            return
        mix = node.member.assign(assignment)
        if assignment.topology == FIRST_TOPOLOGY or not node.is_begun:
            self._begin_if_possible(node)
        self._apply(node, mix)

    def _begin_if_possible(self, node: SimulatedNode) -> None:
        if not node.is_begun and node.member.topology and not node.member.waits_to_adopt:
            node.is_begun = True
            self._begin(node)

    def _begin(self, node: SimulatedNode) -> None:
        if change := self._hostile.get(node.number):
            change(node.member.x)
        messages = node.member.begin()
        kept = node.keep()
        life = node.life

        def saved() -> None:
            if node.life != life:
                return
            node.disk = kept
            self._saved(node)
            for peer, message in messages:
                self._send(node.number, peer, message)
            for peer in node.member.peers:
                self._confirm(node.number, peer)

        self.at(self.now + self._save_s, saved)
        self._compute(node)

    def _saved(self, node: SimulatedNode) -> None:
        node.member.saved()
        node.heads[node.member.iteration] = node.member.head

    def _compute(self, node: SimulatedNode) -> None:
        life = node.life
        delay = self._save_s + self._compute_s(node.number, node.member.iteration)
        self.at(self.now + delay, lambda: self._computed(node, life))

    def _computed(self, node: SimulatedNode, life: int) -> None:
        if node.life != life or not node.is_alive:
            return
        node.awaits_since = self.now
        mix = node.member.computed(self.now)
        if mix is None and node.member.deadline is not None:
            self.at(node.member.deadline, lambda: self._tick(node, life))
        self._apply(node, mix)

    def _tick(self, node: SimulatedNode, life: int) -> None:
        if node.life == life and node.is_alive:
            self._apply(node, node.member.tick(self.now))

    def _apply(self, node: SimulatedNode, mix: Mix | None) -> None:
        if mix is None:
            return
        if node.finished and node.finished[-1][1] + 1 == self._iterations:  # it comes after the last iteration
            self._mix(node, mix)
            return
        step = self._step(node.number, node.member.x.clone(), node.member.iteration)
        self._mix(node, mix)
        self._note_unreadable(node)
        node.member.x.add_(step)
        node.member.stepped(step)
        node.missing += mix.missing
        node.finished.append((self.now, node.member.iteration))
        assert node.awaits_since is not None
        node.waited_s.append(self.now - node.awaits_since)
        node.awaits_since = None
        if node.member.iteration + 1 < self._iterations:
            self._begin(node)

    def _note_unreadable(self, node: SimulatedNode) -> None:
        found = node.member.unreadable()
        node.unreadable |= found
        assert node.number in self._hostile or found.keys() <= self._hostile.keys(), f"{node.number}: {found}"

    def _mix(self, node: SimulatedNode, mix: Mix) -> None:
        node.member.mix(mix)

    # lines

    def _send(self, source: int, target: int, message: Message) -> None:
        line = frozenset((source, target))
        if self._broken.get(line, 0.0) > self.now:
            return
        if self._random.random() < self._lost:
            self._broken[line] = self.now + RECONNECT_S
            self.at(self.now + RECONNECT_S, lambda: self._reconnect(source, target))
            return
        arc = (source, target)
        self._free[source] = max(self._free.get(source, 0.0), self.now) + self._sending_s(*arc)
        self._arrives[arc] = max(self._arrives.get(arc, 0.0), self._free[source] + self._line_s(*arc))
        self.at(self._arrives[arc], lambda: self._arrive(source, target, message))

    def _arrive(self, source: int, target: int, message: Message) -> None:
        node = self.nodes.get(target)
        if node is None or not node.is_alive:
            return
        if self._random.random() < self._lost:  # it comes twice
            self.at(self.now + 0.05, lambda: self._arrive(source, target, message))
        mix = node.member.received(source, message)
        self._note_unreadable(node)
        self._begin_if_possible(node)
        self._apply(node, mix)

    def _confirm(self, source: int, target: int) -> None:
        sequence = self.nodes[source].member.received_from(target)
        if self._confirmed.get((source, target)) == sequence:
            return

        def confirmed() -> None:
            node = self.nodes.get(target)
            if node is not None and node.is_alive:
                node.member.acknowledged(source, sequence)
                self._confirmed[source, target] = sequence

        if self._broken.get(frozenset((source, target)), 0.0) <= self.now:
            self.at(self.now + self._line_s(source, target), confirmed)

    def _reconnect(self, one: int, other: int) -> None:
        for source, target in ((one, other), (other, one)):
            node = self.nodes.get(source)
            if node is None or not node.is_alive:
                continue
            node.member.present(target)
            for message in node.member.unacknowledged(target):
                self._send(source, target, message)
