"""A gossip run under virtual time: real iteration machines and real copies, over lines that lose messages,
deliver them twice, and out of order."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from random import Random

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.contract import Parameter
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.copies import Copies
from thinwire_proto.gossip.iteration import IterationMachine, Mix, Turn
from thinwire_proto.gossip.message import Message
from thinwire_proto.gossip.topology import Topology

LAYOUT = TileLayout([Parameter(name="m", shape=(3, 5)), Parameter(name="v", shape=(4,))])
LOST = TWICE = 0.05
RESEND_S = 3.0
PATIENCE_S = 8.0


class CopyingNode:
    """x: float32 [LAYOUT.parameters]. stepped: the sum of its own steps, float64."""

    def __init__(self, x: Tensor, gamma: float) -> None:
        self.x = x.clone()
        self.copies = Copies(LAYOUT, gamma)
        self.machine = IterationMachine(1, PATIENCE_S)
        self.stepped = np.zeros(LAYOUT.parameters)
        self.unread: defaultdict[int, deque[Turn]] = defaultdict(deque)
        self.is_alive = True


class CopyingWorld:
    """Runs one topology at a time; see `run`. step_size: of the random step that a node makes in each iteration."""

    def __init__(self, codec: Callable[[Random], str], gamma: float, seed: int, step_size: float = 1e-3) -> None:
        self.rng = Random(seed)
        self.nodes: dict[int, CopyingNode] = {}
        self.messages = self.lost = self.mixed = 0
        self._generator = torch.Generator().manual_seed(seed)
        self._codec, self._gamma, self._step_size = codec, gamma, step_size
        self._now = 0.0
        self._number = -1
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._counter = itertools.count()

    def add(self, name: int, x: Tensor) -> None:
        self.nodes[name] = CopyingNode(x, self._gamma)

    def connect(self, one: int, other: int, start: Tensor | None) -> None:
        for end, peer in ((one, other), (other, one)):
            self.nodes[end].copies.join(peer, start)

    def kill(self, name: int, after_s: float) -> None:
        def die() -> None:
            self.nodes[name].is_alive = False

        self._at(after_s, die)

    def forget(self, name: int) -> None:
        """The node is dead, and all others know it."""
        del self.nodes[name]
        for node in self.nodes.values():
            node.copies.leave(name)
            node.unread.pop(name, None)

    def run(self, topology: Topology, members: list[int], iterations: int) -> None:
        """All members that live run so many iterations of a new topology, and then mix what has come."""
        self._number += 1
        self._topology, self._members, self._iterations = topology, members, iterations
        for name in members:
            self._begin(name, 0)
        self._play()
        self._iterations = 0
        for name in self.alive(members):  # what has come since
            machine = self.nodes[name].machine
            machine.begin(self._number, iterations, ())
            self._read_on(name)
            self._mix(name, machine.computed(self._now) or machine.tick(float("inf")))
        self._play()

    def alive(self, names: Iterable[int]) -> list[int]:
        return [name for name in names if self.nodes[name].is_alive]

    def settle(self) -> None:
        """Deliver everything, without losses, and take what will never be mixed."""
        for name in self.alive(self.nodes):
            for peer in self.alive(self.nodes[name].copies.edges):
                for message in self.nodes[name].copies.edges[peer].unacknowledged():
                    self.nodes[peer].copies.edges[name].receive(message)

    # inside

    def _at(self, after_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + after_s, next(self._counter), event))

    def _play(self) -> None:
        while self._events:
            self._now, _, event = heapq.heappop(self._events)
            event()

    def _begin(self, name: int, iteration: int) -> None:
        node, place = self.nodes[name], self._members.index(name)
        peers = []
        for target in self._topology.at(iteration).targets(place):
            peer = self._members[target]
            edge = node.copies.edges[peer]
            if edge.may_send_for((self._number, iteration)):
                message = edge.send((self._number, iteration), node.x, self._codec(self.rng))
                self._deliver(name, peer, message)
                self._at(RESEND_S, lambda peer=peer: self._resend(name, peer))  # type: ignore[misc]
                peers.append(peer)
        node.machine.begin(self._number, iteration, peers)
        self._at(self.rng.uniform(0.5, 1.5), lambda: self._computed(name))
        self._read_on(name)

    def _resend(self, name: int, peer: int) -> None:
        if not self.nodes[name].is_alive or not self.nodes[peer].is_alive:
            return
        for message in self.nodes[name].copies.edges[peer].unacknowledged():
            self._deliver(name, peer, message)
            self._at(RESEND_S, lambda: self._resend(name, peer))
            break  # the first says enough: the rest follows when it is acknowledged

    def _deliver(self, name: int, peer: int, message: Message) -> None:
        self.messages += 1
        if self.rng.random() < LOST:
            self.lost += 1
            return
        for _ in range(2 if self.rng.random() < TWICE else 1):
            self._at(self.rng.uniform(0.05, 1.0), lambda: self._receive(peer, name, message))

    def _receive(self, name: int, peer: int, message: Message) -> None:
        node = self.nodes[name]
        if not node.is_alive:
            return
        edge = node.copies.edges[peer]
        node.unread[peer].extend(Turn(*arrived.when, peer) for arrived in edge.receive(message))
        received = edge.received
        if self.rng.random() >= LOST:
            back = self.nodes[peer].copies.edges[name]
            self._at(self.rng.uniform(0.05, 1.0), lambda: back.acknowledge(received))
        self._read_on(name)

    def _read_on(self, name: int) -> None:
        node = self.nodes[name]
        for peer, turns in node.unread.items():
            while turns and node.machine.accepts(peer):
                self._mix(name, node.machine.received(turns.popleft()))

    def _computed(self, name: int) -> None:
        node = self.nodes[name]
        if not node.is_alive:
            return
        mix = node.machine.computed(self._now)
        if mix is None and node.machine.deadline is not None:
            self._at(node.machine.deadline - self._now, lambda: self._mix(name, node.machine.tick(self._now)))
        self._mix(name, mix)

    def _mix(self, name: int, mix: Mix | None) -> None:
        node = self.nodes[name]
        if mix is None or not node.is_alive:
            return
        place = self._members.index(name)

        def weight(turn: Turn) -> float:
            return self._topology.at(turn.iteration).rows[place][self._members.index(turn.peer)]

        self.mixed += node.copies.mix(node.x, mix.turns, weight)
        if node.machine.iteration < self._iterations:
            step = self._step_size * torch.randn(LAYOUT.parameters, generator=self._generator)
            node.x.sub_(step)
            node.stepped += step.double().numpy()
        if node.machine.next_iteration < self._iterations:
            self._begin(name, node.machine.next_iteration)
