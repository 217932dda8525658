"""A gossip run under virtual time: real iteration machines, lines with delays, nodes that are killed.

Parameters are one integer a node, so sums are exact. Mixing at γ = 1 with weight ½ moves half of the difference of both
copies, rounded towards zero, which is the same amount on both ends.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from thinwire_proto.gossip.iteration import IterationMachine, Mix, Turn
from thinwire_proto.gossip.topology import Topology


@dataclass
class Gossiper:
    """A simulated node. sent and heard: by turn, its own copy and the peer's. finished: end of each iteration, in s."""

    machine: IterationMachine
    value: int
    sent: dict[Turn, int] = field(default_factory=dict)
    heard: dict[Turn, int] = field(default_factory=dict)
    mixed: dict[Turn, int] = field(default_factory=dict)
    finished: list[float] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    last: int = -1
    unread: defaultdict[int, list[tuple[Turn, int]]] = field(default_factory=lambda: defaultdict(list))
    is_alive: bool = True


class GossipWorld:
    """Runs nodes until each that lives has finished `iterations`.

    compute_s(node, iteration) and line_s(source, target, iteration) say how long things take.
    """

    def __init__(
        self,
        topology: Topology,
        iterations: int,
        compute_s: Callable[[int, int], float],
        line_s: Callable[[int, int, int], float],
        *,
        slack: int = 0,
        patience_s: float = 5.0,
        detects_death_s: float | None = None,
    ) -> None:
        self.now = 0.0
        self.topology = topology
        self.nodes = [
            Gossiper(IterationMachine(slack, patience_s), 1000 * (node + 1) ** 2)
            for node in range(topology.layout.nodes)
        ]
        self._iterations = iterations
        self._compute_s, self._line_s = compute_s, line_s
        self._detects_death_s = detects_death_s
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._arrives: dict[tuple[int, int], float] = {}  # the last arrival on each line: they keep the order

    def run(self) -> None:
        for node in range(len(self.nodes)):
            self._begin(node, 0)
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def drain(self) -> None:
        """Let those that live mix what has come after their last iteration."""
        self._iterations = 0
        for node, gossiper in enumerate(self.nodes):
            gossiper.waited_s.append(self.now)
            gossiper.machine.begin(1, 0, ())
            self._read_on(node)
            self._apply(node, gossiper.machine.computed(self.now) or gossiper.machine.tick(float("inf")))

    def kill(self, node: int, at_s: float) -> None:
        self._at(at_s, lambda: self._die(node))

    def _die(self, node: int) -> None:
        self.nodes[node].is_alive = False
        if self._detects_death_s is not None:
            self._at(self.now + self._detects_death_s, lambda: self._tell_absent(node))

    def _tell_absent(self, absent: int) -> None:
        for node, gossiper in enumerate(self.nodes):
            self._apply(node, gossiper.machine.absent(absent))

    def _at(self, time_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), event))

    def _begin(self, node: int, iteration: int) -> None:
        gossiper, mixing = self.nodes[node], self.topology.at(iteration)
        for target in mixing.targets(node):
            gossiper.sent[Turn(0, iteration, target)] = gossiper.value
            self._send(node, target, iteration, gossiper.value)
        gossiper.machine.begin(0, iteration, mixing.sources(node))
        gossiper.last = iteration
        self._at(self.now + self._compute_s(node, iteration), lambda: self._computed(node))
        self._read_on(node)

    def _send(self, source: int, target: int, iteration: int, value: int) -> None:
        line = (source, target)
        self._arrives[line] = max(self._arrives.get(line, 0.0), self.now + self._line_s(*line, iteration))
        self._at(self._arrives[line], lambda: self._receive(target, Turn(0, iteration, source), value))

    def _receive(self, node: int, turn: Turn, value: int) -> None:
        gossiper = self.nodes[node]
        if not gossiper.is_alive:
            return
        if gossiper.unread[turn.peer] or not gossiper.machine.accepts(turn.peer):
            gossiper.unread[turn.peer].append((turn, value))
        else:
            gossiper.heard[turn] = value
            self._apply(node, gossiper.machine.received(turn))

    def _read_on(self, node: int) -> None:
        """Read messages that waited in the line."""
        for line in self.nodes[node].unread.values():
            waiting = line[:]
            line.clear()
            for turn, value in waiting:
                self._receive(node, turn, value)

    def _computed(self, node: int) -> None:
        gossiper = self.nodes[node]
        if not gossiper.is_alive:
            return
        gossiper.waited_s.append(self.now)
        mix = gossiper.machine.computed(self.now)
        if mix is None and gossiper.machine.deadline is not None:
            deadline = gossiper.machine.deadline
            self._at(deadline, lambda: self._tick(node))
        self._apply(node, mix)

    def _tick(self, node: int) -> None:
        self._apply(node, self.nodes[node].machine.tick(self.now))

    def _apply(self, node: int, mix: Mix | None) -> None:
        gossiper = self.nodes[node]
        if mix is None or not gossiper.is_alive:
            return
        for turn in mix.turns:
            difference = gossiper.heard[turn] - gossiper.sent[turn]
            moved = abs(difference) // 2 * (1 if difference > 0 else -1)
            assert turn not in gossiper.mixed
            gossiper.mixed[turn] = moved
            gossiper.value += moved
        gossiper.missing += mix.missing
        gossiper.finished.append(self.now)
        gossiper.waited_s[-1] = self.now - gossiper.waited_s[-1]
        if gossiper.machine.next_iteration < self._iterations:
            self._begin(node, gossiper.machine.next_iteration)
