"""The recurrence of gossip against a simulation event by event, and the figures that the design was checked with."""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np
import pytest

from thinwire_planner.methods.gossip import WARMUP_PART, iteration_s
from thinwire_planner.timing.link import Floats
from thinwire_proto.gossip.topology import Arcs, Layout, Topology, cycle_of, make_topology, topology_names


def simulated_s(
    topology: Topology, transfers_s: list[dict[tuple[int, int], float]], computing_s: Floats, slack: int, overlap: bool
) -> float:
    """Mean seconds of an iteration, from messages that are sent and arrive one by one."""
    count, nodes = computing_s.shape
    heap: list[tuple[float, int, str, int, int]] = []
    arrived: dict[tuple[int, int], int] = defaultdict(int)
    is_computed: set[tuple[int, int]] = set()
    finished = np.zeros((count + 1, nodes))
    order = 0

    def push(at_s: float, what: str, node: int, iteration: int) -> None:
        nonlocal order
        order += 1
        heapq.heappush(heap, (at_s, order, what, node, iteration))

    def send(at_s: float, node: int, made_in: int) -> None:
        """Send what is mixed in the iteration that is `slack` later."""
        mixed_in = made_in + slack
        if mixed_in < count:
            for target in topology.at(mixed_in).targets(node):
                push(at_s + transfers_s[mixed_in % len(transfers_s)][node, target], "message", target, mixed_in)

    def begin(at_s: float, node: int, iteration: int) -> None:
        if iteration < count:
            if overlap:
                send(at_s, node, iteration)
            push(at_s + computing_s[iteration, node], "computed", node, iteration)

    for node in range(nodes):
        begin(0.0, node, 0)
    while heap:
        now_s, _, what, node, iteration = heapq.heappop(heap)
        if what == "message":
            arrived[node, iteration] += 1
        else:
            is_computed.add((node, iteration))
            if not overlap:
                send(now_s, node, iteration)
        expected = len(topology.at(iteration).sources(node)) if iteration >= slack else 0
        if (node, iteration) in is_computed and arrived[node, iteration] == expected:
            is_computed.discard((node, iteration))
            finished[iteration + 1, node] = now_s
            begin(now_s, node, iteration + 1)
    warm = int(WARMUP_PART * count)
    return float((finished[count].mean() - finished[warm].mean()) / (count - warm))


@pytest.mark.parametrize("name", topology_names())
@pytest.mark.parametrize(("slack", "overlap"), [(0, True), (1, True), (2, True), (0, False), (1, False)])
def test_the_recurrence_is_the_simulation(name: str, slack: int, overlap: bool) -> None:
    topology = make_topology(name, Layout(7))
    random = np.random.default_rng(3)
    computing = random.uniform(0.5, 1.5, (40, 7))
    cycle = cycle_of(topology)
    transfers = [random.uniform(0.0, 1.2, len(arcs.senders)) for arcs in cycle]
    by_edge = [
        dict(zip(zip(arcs.senders.tolist(), arcs.receivers.tolist(), strict=True), times.tolist(), strict=True))
        for arcs, times in zip(cycle, transfers, strict=True)
    ]
    found = iteration_s(cycle, transfers, computing, slack=slack, is_overlapped=overlap)
    assert found == pytest.approx(simulated_s(topology, by_edge, computing, slack, overlap), rel=1e-9)


def test_the_arcs_of_a_node_are_those_it_hears() -> None:
    mixing = make_topology("random-regular", Layout(6)).at(0)
    arcs = Arcs.of(mixing)
    for node in range(6):
        heard = [number for number in arcs.heard[node] if number < len(arcs.senders)]
        assert sorted(arcs.senders[heard]) == list(mixing.sources(node))
        assert set(arcs.receivers[heard]) <= {node}


NODES, MESSAGE_S = 32, 0.3


def test_equal_times_take_the_longer_of_computing_and_message() -> None:
    cycle = cycle_of(make_topology("ring", Layout(4)))
    for message_s in (0.5, 2.0):
        transfers = [np.full(len(arcs.senders), message_s) for arcs in cycle]
        assert iteration_s(cycle, transfers, np.ones((40, 4))) == pytest.approx(max(1.0, message_s))
