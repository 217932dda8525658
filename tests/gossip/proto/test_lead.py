"""How far nodes can lead while they wait for each other: over one-way edges, the whole graph bounds it."""

from __future__ import annotations

import pytest

from thinwire_proto.gossip.iteration import SLACK_MAX, IterationMachine, Turn
from thinwire_proto.gossip.lead import lead_of
from thinwire_proto.gossip.topology import Layout, Topology, make_topology, topology_names

UNDIRECTED = topology_names(directed=False)
PATIENCE_S = 1.0


class Nodes:
    """All run as far as they can; messages take no time."""

    def __init__(self, topology: Topology, slack: int) -> None:
        lead = lead_of(topology, slack)
        self._topology = topology
        self.machines = [IterationMachine(slack, PATIENCE_S, lead) for _ in range(topology.nodes)]
        self._skipped = False

    def run(self, until: int, stopped: int | None = None) -> None:
        """Nobody goes beyond an iteration, and one node does not go on at all."""
        going = True
        while going:
            going = False
            for name, machine in enumerate(self.machines):
                if name != stopped and machine.iteration < until:
                    going |= self._step(name, machine)

    def _step(self, name: int, machine: IterationMachine) -> bool:
        if machine.iteration >= 0 and machine.deadline is None and machine.computed(0.0) is None:
            return False
        if machine.deadline is not None:
            return False
        assert machine.next_iteration == machine.iteration + 1, "a node skips although nobody gave it up"
        self._begin(name, machine)
        return True

    def _begin(self, name: int, machine: IterationMachine) -> None:
        iteration = machine.next_iteration
        mixing = self._topology.at(iteration)
        machine.begin(0, iteration, mixing.sources(name))
        for target in mixing.targets(name):
            assert self.machines[target].accepts(name)
            if self.machines[target].received(Turn(0, iteration, name)) is not None:
                self._begin(target, self.machines[target])


def furthest(topology: Topology, slack: int) -> int:
    """The largest distance by which a node is ahead of one that has stopped, whichever and whenever."""
    found = 0
    for at in range(len(topology.mixings)):
        for stopped in range(topology.nodes):
            nodes = Nodes(topology, slack)
            nodes.run(10 + at)
            nodes.run(200, stopped)
            found = max(found, *(machine.iteration - 10 - at for machine in nodes.machines))
    return found


@pytest.mark.parametrize("slack", [0, 1, 3])
@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8])
def test_nobody_gets_further_ahead_over_one_way_edges_and_somebody_gets_so_far(nodes: int, slack: int) -> None:
    topology = make_topology("directed-exponential", Layout(nodes))
    assert furthest(topology, slack) == lead_of(topology, slack)


@pytest.mark.parametrize("name", UNDIRECTED)
def test_over_an_edge_with_both_ends_a_peer_is_ahead_by_one_and_the_slack(name: str) -> None:
    topology = make_topology(name, Layout(8, per_host=2))
    assert [lead_of(topology, slack) for slack in range(SLACK_MAX + 1)] == [1, 2, 3, 4, 5]
