"""Iterations of a gossip run: each turn is mixed by both ends or by neither, and nobody waits or leads for long."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from support.member_world import ANNOUNCE_S, MemberWorld, SimulatedNode
from thinwire_proto.errors import ConfigError, LocalError
from thinwire_proto.gossip.iteration import AHEAD_MAX, SLACK_MAX, IterationMachine, Mix, Turn
from thinwire_proto.gossip.member_state import MemberSettings
from thinwire_proto.gossip.mixing import late_factor
from thinwire_proto.gossip.topology import Layout, Topology, lead_of, make_topology, topology_names

UNDIRECTED = topology_names(directed=False)
PATIENCE_S = 5.0
Duration = Callable[..., float]


def drawn(seed: int, low_s: float, high_s: float) -> Duration:
    """Durations that depend on seed and arguments alone."""
    return lambda *key: random.Random(f"{seed} {key}").uniform(low_s, high_s)


START_S = ANNOUNCE_S
"""When all begin."""


def world_of(nodes: int, slack: int = 0, patience_s: float = PATIENCE_S, **given: Any) -> MemberWorld:
    """Whose nodes take no time to save."""
    return MemberWorld(nodes, MemberSettings("dense", 1.0, slack, patience_s), parameters=8, save_s=0.0, **given)


@pytest.mark.parametrize("slack", [0, 1, 3])
@pytest.mark.parametrize("name", ["ring", "one-peer-exponential", "complete"])
def test_nodes_wait_exactly_as_long_as_max_plus_algebra_says(name: str, slack: int) -> None:
    compute_s, line_s = drawn(3, 0.5, 1.5), drawn(4, 0.2, 2.0)
    world = world_of(5, slack, 1e9, topology=name, compute_s=compute_s, line_s=line_s, iterations=20)
    world.run()
    expected = max_plus(make_topology(name, Layout(5)), 20, compute_s, line_s, slack)
    for number, ends in enumerate(expected):  # in the last iteration, all messages are waited for
        assert [at - START_S for at, _ in world.nodes[number].finished[:-1]] == pytest.approx(ends[:-1])


def max_plus(
    topology: Topology, iterations: int, compute_s: Duration, line_s: Duration, slack: int
) -> list[list[float]]:
    """End of each iteration of each node: when it has computed, and has the messages of `slack` iterations before."""
    nodes = range(topology.layout.nodes)
    ends = [[0.0] for _ in nodes]
    arrived = {(source, node): 0.0 for source in nodes for node in nodes}  # a line keeps the order
    arrivals = []
    for iteration in range(iterations):
        mixing, at = topology.at(iteration), {}
        for node in nodes:
            for source in mixing.sources(node):
                arrived[source, node] = max(arrived[source, node], ends[source][-1] + line_s(source, node))
                at[node, source] = arrived[source, node]
        arrivals.append(at)
        due = arrivals[iteration - slack] if iteration >= slack else {}
        after = [ends[node][-1] + compute_s(node, iteration) for node in nodes]
        for (node, _), arrival in due.items():
            after[node] = max(after[node], arrival)
        for node in nodes:
            ends[node].append(after[node])
    return [end[1:] for end in ends]


class Recording(MemberWorld):
    """mixed: the turns that each node has mixed."""

    mixed: defaultdict[int, list[Turn]]

    def _open(self) -> None:
        self.mixed = defaultdict(list)
        super()._open()

    def _mix(self, node: SimulatedNode, mix: Mix) -> None:
        self.mixed[node.number] += mix.turns
        super()._mix(node, mix)


@pytest.mark.parametrize("name", UNDIRECTED)
def test_turns_of_those_that_live_are_mixed_by_both_ends_or_by_neither(name: str) -> None:
    line_s, settings = random.Random(6), MemberSettings("dense", 1.0, 0, PATIENCE_S)
    lines: dict[str, Any] = {"compute_s": drawn(5, 0.5, 1.5), "line_s": lambda *_: line_s.uniform(0.1, 9.0)}
    world = Recording(7, settings, topology=name, parameters=8, iterations=25, **lines)
    world.at(20.25, partial(world.kill, 3))
    world.at(40.25, partial(world.kill, 6))
    world.run()
    alive = [number for number, node in world.nodes.items() if node.is_alive]
    assert alive == [0, 1, 2, 4, 5]
    for number in alive:
        assert len(set(world.mixed[number])) == len(world.mixed[number]) > 0
        for turn in world.mixed[number]:
            if turn.peer in alive:
                assert Turn(turn.topology, turn.iteration, number) in world.mixed[turn.peer]
        assert world.nodes[number].finished[-1][1] == 24


def four(patience_s: float) -> tuple[MemberWorld, list[SimulatedNode]]:
    """Nodes of equal pace, and those of them that live: one is killed in the middle of its iteration 10."""
    world = world_of(4, 0, patience_s, topology="complete", iterations=30, line_s=lambda *_: 0.25)
    world.at(START_S + 10.5, partial(world.kill, 1))
    return world, [world.nodes[number] for number in (0, 2, 3)]


def test_a_death_that_is_noticed_costs_no_more_than_until_it_is_noticed() -> None:
    world, alive = four(60.0)
    world.at(START_S + 12.5, partial(world.lose_lines, 1))
    world.run()
    assert [max(node.waited_s[:-1]) for node in alive] == pytest.approx([0.5] * 3)  # from 12 to 12.5
    assert not any(node.missing[:-1] for node in alive)  # in the last iteration, everybody is waited for


def test_a_death_that_nobody_notices_costs_each_peer_its_patience_once() -> None:
    world, alive = four(PATIENCE_S)
    world.run()
    for node in alive:
        assert node.missing == [1, 1]  # the second time in the last iteration, in which everybody is waited for
        assert max(node.waited_s) == pytest.approx(PATIENCE_S)
        assert node.finished[-2][0] == pytest.approx(START_S + 29 + PATIENCE_S)


def test_slack_hides_a_slow_line() -> None:
    ends = []
    for slack in (0, 1):
        world = world_of(4, slack, topology="ring", line_s=lambda *_: 1.75)
        world.run()
        ends.append(max(node.finished[-2][0] for node in world.nodes.values()) - START_S)
    assert ends == pytest.approx([39 * 1.75, 39])


def begun(*iterations: int, slack: int = 0) -> IterationMachine:
    """A machine that has begun these iterations, each with peers 1 and 2, and missed all messages."""
    machine = IterationMachine(slack, PATIENCE_S)
    for number, iteration in enumerate(iterations):
        if number:
            machine.computed(0.0)
            machine.tick(PATIENCE_S)
        machine.begin(0, iteration, (1, 2))
    return machine


def test_a_late_message_is_mixed_in_a_later_iteration_and_its_sender_is_waited_for_again() -> None:
    machine = begun(0, 1)
    machine.received(Turn(0, 0, 1))
    assert machine.computed(10.0) is None
    mix = machine.received(Turn(0, 1, 1))
    assert mix is not None
    assert mix.turns == (Turn(0, 0, 1), Turn(0, 1, 1))
    assert mix.missing == ()  # peer 2 was missing once, and is not waited for again


def test_a_message_of_a_newer_topology_waits_for_its_announcement() -> None:
    machine = begun(7)
    machine.received(Turn(0, 7, 1))
    machine.received(Turn(0, 7, 2))
    machine.received(Turn(1, 8, 2))
    mix = machine.computed(1.0)
    assert mix is not None
    assert Turn(1, 8, 2) not in mix.turns
    machine.begin(1, 8, (2,))
    mix = machine.computed(2.0)
    assert mix is not None
    assert mix.turns == (Turn(1, 8, 2),)


def test_a_message_that_is_read_twice_or_too_early_is_refused_and_changes_nothing() -> None:
    machine = begun(0)
    machine.received(Turn(0, 0, 1))
    with pytest.raises(LocalError, match="iteration 0 was read after iteration 0"):
        machine.received(Turn(0, 0, 1))
    for iteration in range(1, AHEAD_MAX + 1):
        assert machine.accepts(1)
        machine.received(Turn(0, iteration, 1))
    assert not machine.accepts(1)
    with pytest.raises(LocalError, match=f"iteration {AHEAD_MAX + 1} was read in iteration 0"):
        machine.received(Turn(0, AHEAD_MAX + 1, 1))
    machine.begin(0, 1, (1, 2))
    assert machine.received(Turn(0, AHEAD_MAX + 1, 1)) is None


def test_a_peer_that_says_what_it_has_passed_is_not_waited_for() -> None:
    machine = begun(3)
    machine.received(Turn(0, 3, 2))
    assert machine.computed(1.0) is None
    mix = machine.passed(1, 0, 5)
    assert mix is not None
    assert mix.turns == (Turn(0, 3, 2),)
    machine.begin(0, 5, (1, 2))
    assert machine.open == (Turn(0, 5, 2),)
    machine.begin(0, 6, (1, 2))
    assert Turn(0, 6, 1) in machine.open


@pytest.mark.parametrize("slack", [0, 2])
def test_a_node_skips_to_the_iteration_of_peers_that_no_longer_wait_for_it(slack: int) -> None:
    machine = begun(0, slack=slack)
    machine.received(Turn(0, 0, 1))
    for iteration in range(1, slack + 2):
        machine.received(Turn(0, 2 * iteration, 1))
    assert machine.next_iteration == 1  # a peer that waits may be that far ahead
    machine.received(Turn(0, 40, 1))
    assert machine.next_iteration == 40


@pytest.mark.parametrize(("slack", "patience_s"), [(-1, 1.0), (SLACK_MAX + 1, 1.0), (0, 0.0), (0, float("nan"))])
def test_slack_and_patience_are_checked(slack: int, patience_s: float) -> None:
    with pytest.raises(ConfigError, match="slack must be"):
        IterationMachine(slack, patience_s)


def test_waiting_ends_with_a_reason() -> None:
    machine = begun(0)
    assert machine.computed(3.0) is None
    assert machine.deadline == 3.0 + PATIENCE_S
    assert machine.tick(7.9) is None
    mix = machine.tick(8.0)
    assert mix is not None
    assert (mix.missing, mix.reason) == ((1, 2), "nothing from 1, 2 within 5 s")
    assert machine.deadline is None


def test_a_peer_that_is_present_again_is_waited_for() -> None:
    machine = IterationMachine(slack=0, patience_s=PATIENCE_S)
    machine.begin(0, 0, [1])
    machine.absent(1)
    assert machine.computed(0.0) is not None
    machine.begin(0, 1, [1])
    machine.present(1)
    assert machine.computed(0.0) is None


LEAD_PATIENCE_S = 1.0


class Nodes:
    """All run as far as they can; messages take no time."""

    def __init__(self, topology: Topology, slack: int) -> None:
        lead = lead_of(topology, slack)
        self._topology = topology
        self.machines = [IterationMachine(slack, LEAD_PATIENCE_S, lead) for _ in range(topology.nodes)]

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


LATE_ITERATIONS = 600


def spread_after(name: str, nodes: int, slack: int, factor: float) -> float:
    """The largest distance from the mean after all messages were `slack` iterations late; 1 in the beginning."""
    topology = make_topology(name, Layout(nodes))
    values = [np.where(np.arange(nodes) % 2, 1.0, -1.0) + np.linspace(-0.5, 0.5, nodes)]
    for iteration in range(LATE_ITERATIONS):
        change = np.zeros(nodes)
        if iteration >= slack:
            then = iteration - slack
            change = factor * (topology.at(then).matrix() @ values[then] - values[then])
        values.append(values[-1] + change)
    return float(np.abs(values[-1] - values[-1].mean()).max())


@pytest.mark.parametrize("slack", [0, 1, 2, 4])
@pytest.mark.parametrize("nodes", [2, 4, 7, 8])
@pytest.mark.parametrize("name", UNDIRECTED)
def test_nodes_come_together_however_late_all_messages_are(name: str, nodes: int, slack: int) -> None:
    assert spread_after(name, nodes, slack, late_factor(slack)) < 1e-2


@pytest.mark.parametrize("slack", [1, 2, 4])
def test_without_the_factor_they_would_not(slack: int) -> None:
    assert spread_after("complete", 4, slack, 1.0) > 0.5


def test_without_slack_mixing_is_whole() -> None:
    assert late_factor(0) == 1.0
    assert late_factor(1) == pytest.approx(0.5)
