"""Placement against trying everything, and against the recurrence node by node."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from thinwire_planner.gossip.placement import iteration_seconds, place
from thinwire_planner.timing.link import Floats, LineSeconds
from thinwire_proto.gossip.arcs import Arcs, cycle_of
from thinwire_proto.gossip.topology import Layout, make_topology

NODES = 6


def cycle(name: str, nodes: int = NODES) -> tuple[Arcs, ...]:
    return cycle_of(make_topology(name, Layout(nodes)))


def mixed_lines(seed: int, nodes: int = NODES) -> LineSeconds:
    """Each node sends at a rate of its own."""
    rng = np.random.default_rng(seed)
    sending_s = np.repeat(rng.lognormal(0.0, 0.7, nodes)[:, None], nodes, axis=1)
    return LineSeconds(sending_s, rng.uniform(0.0, 0.2, (nodes, nodes)))


def seconds_of(order: tuple[int, ...], arcs: tuple[Arcs, ...], lines: LineSeconds, computing_s: Floats) -> float:
    return float(iteration_seconds(np.asarray([order]), arcs, lines, computing_s)[0])


@pytest.mark.parametrize("name", ["ring", "one-peer-exponential", "directed-exponential", "random-regular"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_placement_is_as_good_as_the_best_of_all(name: str, seed: int) -> None:
    arcs, computing_s = cycle(name), np.full(NODES, 0.3)
    drawn = np.random.default_rng(seed).uniform(0.1, 1.0, (2, NODES, NODES))
    lines = LineSeconds(drawn[0], drawn[1])
    costs = iteration_seconds(np.asarray(list(permutations(range(NODES)))), arcs, lines, computing_s)
    found = place(arcs, lines, computing_s, seed)
    assert sorted(found) == list(range(NODES))
    assert seconds_of(found, arcs, lines, computing_s) <= 1.05 * costs.min()
    assert costs.max() > 1.1 * costs.min()  # where nothing is to be gained, the test could not fail


@pytest.mark.parametrize("name", ["one-peer-exponential", "random-regular"])
def test_the_cost_is_the_recurrence_of_the_docstring(name: str) -> None:
    """Node by node, in plain Python."""
    arcs, lines = cycle(name), mixed_lines(4)
    computing_s = np.random.default_rng(5).uniform(0.1, 1.0, NODES)
    order = (3, 1, 5, 0, 4, 2)
    finished, free, ends = [0.0] * NODES, [0.0] * NODES, []
    for _ in range(4):
        for step in arcs:
            left, finished = finished, [finished[place_] + computing_s[order[place_]] for place_ in range(NODES)]
            for senders, receivers in step.parts:
                for sender, receiver in zip(senders, receivers, strict=True):
                    ends_at = order[sender], order[receiver]
                    free[sender] = max(free[sender], left[sender]) + lines.sending_s[ends_at]
                    finished[receiver] = max(finished[receiver], free[sender] + lines.delay_s[ends_at])
        ends.append(float(np.mean(finished)))
    found = seconds_of(order, arcs, lines, computing_s)
    assert found == pytest.approx((ends[3] - ends[1]) / (2 * len(arcs)))


def test_nodes_of_one_site_are_neighbours() -> None:
    """Of a ring through two sites, whose nodes stand in turn, two edges must cross; placed, no more do."""
    sites = np.arange(8) % 2
    delay_s = np.where(sites[:, None] == sites[None, :], 0.1, 1.0)
    found = [
        int(sites[node]) for node in place(cycle("ring", 8), LineSeconds(0 * delay_s, delay_s), np.full(8, 0.1), 1)
    ]
    assert sum(one != other for one, other in zip(found, [*found[1:], found[0]], strict=True)) == 2


def test_it_repeats_and_never_worsens() -> None:
    arcs, computing_s = cycle("one-peer-exponential", 12), np.full(12, 0.1)
    for seed in range(5):
        lines = mixed_lines(seed, 12)
        found = place(arcs, lines, computing_s, 7)
        assert found == place(arcs, lines, computing_s, 7)
        as_given = seconds_of(tuple(range(12)), arcs, lines, computing_s)
        assert seconds_of(found, arcs, lines, computing_s) <= as_given


def test_a_complete_graph_needs_no_places() -> None:
    assert place(cycle("complete"), mixed_lines(1), np.full(NODES, 0.1), 1) == tuple(range(NODES))
