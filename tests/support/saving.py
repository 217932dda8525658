"""A gossip run under virtual time whose nodes save: real machines and cuts, over lines with delays.

A node lives in rounds. In each it computes; then it mixes, steps and begins an iteration, unless it skips the step. A
value is one integer, so all sums are exact. A copy is the number of messages of a direction that were read, as a codec
would count them.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from thinwire_proto.gossip.cut import Cut
from thinwire_proto.gossip.iteration import AHEAD_MAX, IterationMachine, Mix, Turn
from thinwire_proto.gossip.topology import Topology

PATIENCE_S = 1e9


@dataclass(frozen=True)
class SavedState:
    """ready: what turns will add, by iteration and peer. open: own value of each turn to be sent again. early: turns
    whose message comes again. done: turns that were mixed, or are ready. sent and read: messages of each direction; in
    `sent` those to be sent again too."""

    number: int
    rounds: int
    iteration: int
    value: int
    ready: dict[tuple[int, int], int]
    open: dict[tuple[int, int], int]
    early: frozenset[tuple[int, int]]
    done: frozenset[tuple[int, int]]
    sent: dict[int, int]
    read: dict[int, int]


@dataclass
class SavingNode:
    machine: IterationMachine
    value: int
    cut: Cut = field(default_factory=Cut)
    rounds: int = 0
    own: dict[tuple[int, int], int] = field(default_factory=dict)
    heard: dict[tuple[int, int], int] = field(default_factory=dict)
    pending: int = 0  # what a loaded state adds
    unread: defaultdict[int, deque[tuple[str, int, int]]] = field(default_factory=lambda: defaultdict(deque))
    undecoded: list[tuple[int, int]] = field(default_factory=list)
    sent: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    read: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    saves: bool = False
    awaits: frozenset[tuple[int, int]] | None = None  # early messages, while the node loads
    done: set[tuple[int, int]] = field(default_factory=set)


class SavingWorld:
    """skips(node, round): whether it does not step. saves: rounds after which all nodes save, each at its own time."""

    def __init__(
        self,
        topology: Topology,
        rounds: int,
        compute_s: Callable[[int, int], float],
        line_s: Callable[[int, int, int], float],
        *,
        slack: int = 0,
        skips: Callable[[int, int], bool] = lambda node, number: False,
        saves: tuple[int, ...] = (),
        start: dict[int, SavedState] | None = None,
    ) -> None:
        self.topology = topology
        self.states: list[dict[int, SavedState]] = []
        self._rounds, self._saves, self._skips = rounds, saves, skips
        self._compute_s, self._line_s = compute_s, line_s
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._counter = itertools.count()
        self._arrives: dict[tuple[int, int], float] = {}
        self.nodes = [
            SavingNode(IterationMachine(slack, PATIENCE_S), 1000 * (node + 1) ** 2)
            for node in range(topology.layout.nodes)
        ]
        for name in range(len(self.nodes)):
            if start is None:
                self._launch(name)
                self._compute(name)
            else:
                self._load(name, start[name])

    def run(self) -> None:
        while self._events:
            self._now, _, event = heapq.heappop(self._events)
            event()

    # inside

    def _load(self, name: int, state: SavedState) -> None:
        node = self.nodes[name]
        node.value, node.rounds = state.value, state.rounds
        node.pending = sum(state.ready.values())
        node.sent.update(state.sent)
        node.read.update(state.read)
        node.awaits = state.early
        node.done.update(state.done)
        for iteration in sorted({there for there, _ in state.open} | {state.iteration}):
            peers = [peer for there, peer in state.open if there == iteration]
            node.machine.begin(0, iteration, peers)
            for peer in peers:
                node.own[iteration, peer] = state.open[iteration, peer]
                self._send(name, peer, ("message", iteration, state.open[iteration, peer]))
        self._tell_passed(name, state.iteration)
        self._read_on(name)

    def _tell_passed(self, name: int, iteration: int) -> None:
        for peer in self.topology.peers(name):
            self._send(name, peer, ("passed", iteration, 0))

    def _at(self, time_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._counter), event))

    def _launch(self, name: int) -> None:
        node = self.nodes[name]
        iteration = node.machine.next_iteration
        before = node.machine.iteration
        if iteration > before + 1:
            self._tell_passed(name, iteration - 1)
        unanswered = [turn.peer for turn in node.machine.open]
        peers = [peer for peer in self.topology.at(iteration).sources(name) if unanswered.count(peer) < AHEAD_MAX]
        for key in list(node.heard):
            if before < key[0] <= iteration and not (key[0] == iteration and key[1] in peers):
                del node.heard[key]
        node.machine.begin(0, iteration, peers)
        for peer in peers:
            node.own[iteration, peer] = node.value
            node.sent[peer] += 1
            self._send(name, peer, ("message", iteration, node.value))

    def _compute(self, name: int) -> None:
        node = self.nodes[name]
        self._at(self._now + self._compute_s(name, node.rounds), lambda: self._computed(name))
        self._read_on(name)

    def _send(self, name: int, peer: int, item: tuple[str, int, int]) -> None:
        line = (name, peer)
        arrival = self._now + self._line_s(*line, next(self._counter))
        self._arrives[line] = max(self._arrives.get(line, 0.0), arrival)
        self._at(self._arrives[line], lambda: self._arrive(peer, name, item))

    def _arrive(self, name: int, peer: int, item: tuple[str, int, int]) -> None:
        self.nodes[name].unread[peer].append(item)
        self._read_on(name)

    def _read_on(self, name: int) -> None:
        node = self.nodes[name]
        for peer, items in node.unread.items():
            while items:
                kind, number, value = items[0]
                if kind != "mark" and not self._may_read(node, peer):
                    break
                items.popleft()
                if kind == "mark":
                    node.cut.marked(peer, number, value)
                    if node.cut.is_ahead(peer):
                        self._mix(name, node.machine.absent(peer))
                elif kind == "passed":
                    self._mix(name, node.machine.passed(peer, 0, number))
                else:
                    self._receive(name, Turn(0, number, peer), value)
        if node.saves:
            self._save_if_whole(name)
        if node.awaits is not None and node.awaits <= node.heard.keys():
            node.awaits = None
            self._compute(name)

    def _may_read(self, node: SavingNode, peer: int) -> bool:
        return node.machine.accepts(peer) and not node.cut.holds(peer)

    def _receive(self, name: int, turn: Turn, value: int) -> None:
        node = self.nodes[name]
        if turn.iteration > node.machine.iteration or turn in node.machine.open:
            node.heard[turn.iteration, turn.peer] = value
        node.undecoded.append((turn.iteration, turn.peer))
        self._mix(name, node.machine.received(turn))

    def _decode(self, node: SavingNode) -> None:
        for iteration, peer in node.undecoded:
            node.read[peer] += iteration <= node.machine.iteration
        node.undecoded = [key for key in node.undecoded if key[0] > node.machine.iteration]

    def _computed(self, name: int) -> None:
        node = self.nodes[name]
        if self._skips(name, node.rounds):
            self._end_round(name)
        else:
            self._mix(name, node.machine.computed(self._now))

    def _mix(self, name: int, mix: Mix | None) -> None:
        if mix is None:
            return
        node = self.nodes[name]
        self._decode(node)
        node.value += node.pending
        node.pending = 0
        for turn in mix.turns:
            key = turn.iteration, turn.peer
            node.value += _moved(node.heard.pop(key), node.own.pop(key))
        node.done.update((turn.iteration, turn.peer) for turn in mix.turns)
        node.value -= step_of(name, node.rounds)
        if node.rounds + 1 < self._rounds:
            self._launch(name)
        self._end_round(name)

    def _end_round(self, name: int) -> None:
        node = self.nodes[name]
        node.rounds += 1
        if node.rounds in self._saves:
            self._save(name)
        elif node.rounds < self._rounds:
            self._compute(name)

    def _save(self, name: int) -> None:
        node = self.nodes[name]
        number = node.cut.begin()
        for peer in self.topology.peers(name):
            self._send(name, peer, ("mark", number, node.machine.iteration))
            if not node.cut.is_ahead(peer):
                node.machine.present(peer)
        node.saves = True
        self._read_on(name)

    def _save_if_whole(self, name: int) -> None:
        node = self.nodes[name]
        if node.cut.missing(self.topology.peers(name)):
            return
        node.saves = False
        self._decode(node)
        iteration = node.machine.iteration
        open_turns = [turn for turn in node.machine.open if node.cut.is_open(turn.peer, turn.iteration)]
        while len(self.states) < node.cut.number:
            self.states.append({})
        self.states[node.cut.number - 1][name] = SavedState(
            node.cut.number,
            node.rounds,
            iteration,
            node.value,
            {key: _moved(theirs, node.own[key]) for key, theirs in node.heard.items() if key[0] <= iteration},
            {(turn.iteration, turn.peer): node.own[turn.iteration, turn.peer] for turn in open_turns},
            frozenset(key for key in node.heard if key[0] > iteration),
            frozenset(node.done | {key for key in node.heard if key[0] <= iteration}),
            dict(node.sent),
            dict(node.read),
        )
        node.cut.end()
        self._compute(name)


def step_of(name: int, number: int) -> int:
    return (7 * name + 3 * number) % 11


def _moved(theirs: int, own: int) -> int:
    """Half of the difference, rounded towards zero: the same amount on both ends."""
    return abs(theirs - own) // 2 * (1 if theirs > own else -1)
