"""Mixing by differences that are some iterations old."""

import numpy as np
import pytest

from thinwire_proto.gossip.mixing import late_factor
from thinwire_proto.gossip.topology import Layout, make_topology, topology_names

UNDIRECTED = topology_names(directed=False)
ITERATIONS = 600


def spread_after(name: str, nodes: int, slack: int, factor: float) -> float:
    """The largest distance from the mean after all messages were `slack` iterations late; 1 in the beginning."""
    topology = make_topology(name, Layout(nodes))
    values = [np.where(np.arange(nodes) % 2, 1.0, -1.0) + np.linspace(-0.5, 0.5, nodes)]
    for iteration in range(ITERATIONS):
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
