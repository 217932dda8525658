"""The directory of a gossip run, while nodes come and go."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from support.directories import BEAT_S, SETTINGS, begun, heard
from thinwire_coordinator.gossip.directory import Directory
from thinwire_coordinator.gossip.formation import FormedTopology, Plan


@dataclass
class Node:
    done: float = 0.0  # iterations
    topology: int = 0
    start: int = 0  # where it begins, if it adopts
    adopts: bool = False


class Churn:
    """Nodes of about one pace, which report once a beat, come and go."""

    def __init__(self, kind: str, seed: int) -> None:
        self.draw = random.Random(seed)
        self.pace = 0.1 + 3 * self.draw.random()
        self.directory = Directory(replace(SETTINGS, topology=kind, nodes_least=4, steps=1_000_000))
        self.nodes: dict[str, Node] = {}
        self.numbers: dict[str, int] = {}
        self.topologies: dict[int, FormedTopology] = {}

    def beat(self, beat: int) -> None:
        for number in range(self.draw.choice((0, 0, 0, 1, 2)) if beat else 5):
            self.nodes[f"{beat} {number}"] = Node()
        for name in [name for name in self.nodes if len(self.nodes) > 4 and self.draw.random() < 0.03]:
            del self.nodes[name]
            if self.draw.random() < 0.5:
                self.directory.leave(name)
        for at, name in sorted((self.draw.random() * BEAT_S, name) for name in self.nodes):
            self.report(name, self.nodes[name], beat * BEAT_S + at)

    def report(self, name: str, node: Node, now: float) -> None:
        directory = self.directory
        member = heard(directory, name, int(node.done), now)
        assert self.numbers.setdefault(name, member) == member
        directory.lose(now)
        if isinstance(directory.decide(now), Plan):
            formed = begun(directory, now)
            assert formed.plan.number == len(self.topologies) + 1
            self.topologies[formed.plan.number] = formed
        if directory.topology is None or member not in directory.topology.plan.members:
            return
        plan = directory.topology.plan
        if node.topology < plan.number and (node.adopts or not node.topology):
            node.adopts = member in plan.adopting
            node.start = node.start if node.topology else plan.start
        elif node.topology < plan.number:
            assert node.done <= plan.start, "it hears of the topology after its start"
        node.topology = plan.number
        if not node.adopts:
            node.done += self.pace * (0.8 + 0.2 * self.draw.random()) * BEAT_S / 2
        elif max(other.done for other in self.nodes.values() if not other.adopts) >= node.start:
            node.done, node.adopts = float(node.start), False  # a peer got there


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["ring", "one-peer-exponential", "matching", "random-regular", "complete"])
def test_churn(kind: str, seed: int) -> None:
    """Each topology begins after all its running members know it, and both ends of each edge know it alike."""
    churn = Churn(kind, seed)
    for beat in range(150):
        churn.beat(beat)
    assert len(set(churn.numbers.values())) == len(churn.numbers)
    assert len(churn.topologies) > 20
    for number, formed in churn.topologies.items():
        assert number == 1 or formed.plan.start > churn.topologies[number - 1].plan.start
        for member in formed.plan.members:
            mine = formed.assignment(member)
            assert all(sum(turns.values()) <= 1 + 1e-9 for turns in mine.cycle)
            for place, peer in [(place, peer) for place, turns in enumerate(mine.cycle) for peer in turns]:
                other = formed.assignment(peer)
                assert other.cycle[place][member] == mine.cycle[place][peer]
                assert other.since[member] == mine.since[peer]
