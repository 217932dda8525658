"""Topologies of training by gossip: any number of nodes, one mean for all, no edge that only one end knows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.mixing import Mixing, check_stochastic, metropolis, push
from thinwire_proto.gossip.topology import Layout, make_topology, register_topology, topology_names

ONE_PEER = ("ring", "one-peer-exponential", "matching")
UNDIRECTED = topology_names(directed=False)


@pytest.mark.parametrize("name", topology_names())
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 16, 17, 31, 32, 33])
def test_a_topology_of_any_number_of_nodes_keeps_the_mean_and_reaches_it(name: str, nodes: int) -> None:
    topology = make_topology(name, Layout(nodes))
    start = np.random.default_rng(nodes).normal(size=nodes)
    mixed = start.copy()
    for iteration in range(40 * nodes * max(len(topology.mixings), 4)):
        mixed = topology.at(iteration).matrix() @ mixed
    np.testing.assert_allclose(mixed, start.mean(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", UNDIRECTED)
@pytest.mark.parametrize("nodes", [2, 5, 8, 12])
def test_both_ends_of_an_edge_give_it_the_same_weight(name: str, nodes: int) -> None:
    for mixing in make_topology(name, Layout(nodes)).mixings:
        matrix = mixing.matrix()
        np.testing.assert_array_equal(matrix, matrix.T)


@pytest.mark.parametrize("name", ONE_PEER)
@pytest.mark.parametrize("nodes", [2, 3, 7, 8, 20])
def test_one_peer_topologies_give_each_node_at_most_one_peer_in_an_iteration(name: str, nodes: int) -> None:
    for mixing in make_topology(name, Layout(nodes)).mixings:
        assert max(len(row) for row in mixing.rows) == 1


@pytest.mark.parametrize("nodes", [2, 4, 16, 64])
def test_a_cycle_of_one_peer_exponential_averages_exactly_with_a_power_of_two(nodes: int) -> None:
    topology = make_topology("one-peer-exponential", Layout(nodes))
    assert len(topology.mixings) == nodes.bit_length() - 1
    assert topology.contraction == 0


def test_contraction_is_what_a_cycle_does_to_the_worst_start() -> None:
    topology = make_topology("ring", Layout(9))
    whole = np.linalg.multi_dot([mixing.matrix() for mixing in reversed(topology.mixings)]) - 1 / 9
    worst = np.linalg.svd(whole)[2][0]
    shrunk = np.linalg.norm(whole @ worst) / np.linalg.norm(worst)
    assert topology.contraction ** len(topology.mixings) == pytest.approx(shrunk)


@pytest.mark.parametrize("name", topology_names())
def test_the_page_has_the_contraction_of_each_topology(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "decentralized.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.startswith(f"| `{name}`")]
    (found,) = [row[3].removesuffix(", over a cycle") for row in rows if len(row) == 5]
    assert found == f"{make_topology(name, Layout(16)).contraction:.3f}".replace("0.000", "0")


def test_half_of_the_pairs_of_hosts_take_turns_in_the_alternating_topology() -> None:
    topology = make_topology("alternating-exponential-ring", Layout(8, per_host=2))
    first = topology.mixings[0]
    assert [first.sources(node) for node in range(8)] == [
        (1,),
        (0,),
        (3,),
        (2,),
        (5, 6, 7),
        (4, 6, 7),
        (4, 5, 7),
        (4, 5, 6),
    ]
    assert all(first.own[node] == pytest.approx(1 / (1 + len(first.sources(node)))) for node in range(8))


def test_auto_takes_hosts_into_account() -> None:
    assert make_topology("auto", Layout(2)).name == "complete"
    assert make_topology("auto", Layout(6)).name == "one-peer-exponential"
    assert make_topology("auto", Layout(4, per_host=4)).name == "complete"
    assert make_topology("auto", Layout(8, per_host=4)).name == "alternating-exponential-ring"


def test_random_topologies_follow_the_seed_alone() -> None:
    rows = [make_topology("matching", Layout(20, seed=seed)).mixings[0].rows for seed in (1, 1, 2)]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]


def test_an_uneven_directed_graph_keeps_the_sum() -> None:
    mixing = push(3, [(0, 1), (0, 2), (1, 2), (2, 0)])
    check_stochastic(mixing, doubly=False)
    with pytest.raises(ConfigError, match="weights of node"):
        check_stochastic(mixing, doubly=True)


def test_weights_that_would_move_the_mean_are_refused() -> None:
    with pytest.raises(ConfigError, match="all nodes give to node 0"):
        check_stochastic(Mixing((0.5, 0.5), ({1: 0.5}, {})), doubly=False)
    with pytest.raises(ConfigError, match="negative"):
        check_stochastic(Mixing((1.5, 1.5), ({1: -0.5}, {0: -0.5})), doubly=True)


@pytest.mark.parametrize("edge", [(0, 4), (-1, 0), (2, 2)])
def test_an_edge_outside_of_the_graph_is_refused(edge: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="does not join two of the nodes 0 to 3"):
        metropolis(4, [edge])


def test_a_script_registers_its_own_topology() -> None:
    @register_topology("test-line")
    def line(layout: Layout) -> list[list[tuple[int, int]]]:
        return [[(node, node + 1) for node in range(layout.nodes - 1)]]

    assert make_topology("test-line", Layout(4)).peers(1) == (0, 2)
    with pytest.raises(ConfigError, match="taken"):
        register_topology("test-line")(line)


@pytest.mark.parametrize("returned", [None, [None], [[0, 1]], [[(0, 1, 2)]], [[(0, "1")]], [[(0, 1.5)]]])
def test_a_topology_that_returns_no_edges_is_named(returned: Any) -> None:
    name = f"test-{returned}"
    register_topology(name)(lambda layout: returned)
    with pytest.raises(ConfigError, match=r"test-.*: its function must return a list of the edges of each iteration"):
        make_topology(name, Layout(4))


def test_a_topology_that_leaves_nodes_apart_is_refused() -> None:
    @register_topology("test-pairs")
    def pairs(layout: Layout) -> list[list[tuple[int, int]]]:
        return [[(node, node + 1) for node in range(0, layout.nodes, 2)]]

    with pytest.raises(ConfigError, match="never hear"):
        make_topology("test-pairs", Layout(4))


def test_an_unknown_name_and_an_uneven_layout_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no 'rign'; there are auto, alternating-exponential-ring, complete"):
        make_topology("rign", Layout(4))
    with pytest.raises(ConfigError, match="evenly"):
        Layout(5, per_host=2)
