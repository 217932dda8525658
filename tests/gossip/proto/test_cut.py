"""States that nodes save by themselves fit together, and a run that starts from them is the one that went on."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from support.saving import SavedState, SavingWorld
from thinwire_proto.gossip.cut import Cut
from thinwire_proto.gossip.topology import Layout, make_topology, topology_names

UNDIRECTED = topology_names(directed=False)
NODES, ROUNDS, SAVES = 6, 40, (7, 8, 19, 30)
Duration = Callable[..., float]


def drawn(seed: int, low_s: float, high_s: float) -> Duration:
    """Durations that depend on seed and arguments alone."""
    return lambda *key: random.Random(f"{seed} {key}").uniform(low_s, high_s)


def skipping(seed: int) -> Callable[[int, int], bool]:
    """Node 1 skips a third of its steps, two just before a save; the others a twentieth."""

    def skips(node: int, number: int) -> bool:
        if node == 1 and number in (17, 18):
            return True
        return random.Random(f"{seed} {node} {number}").random() < (0.33 if node == 1 else 0.05)

    return skips


def faults_of(states: dict[int, SavedState], name: str) -> list[str]:
    """The faults between the states of two peers."""
    topology, found = make_topology(name, Layout(NODES)), []
    for node, state in states.items():
        for peer in topology.peers(node):
            there, last = states[peer], max(state.iteration, states[peer].iteration)
            again = {iteration for iteration, other in state.open if other == peer}
            for iteration in range(last + 1):
                done = (iteration, peer) in state.done
                if done != ((iteration, node) in there.done):
                    found.append(f"one end of turn {iteration} of {node} and {peer} has mixed it")
                if iteration in again and (iteration <= there.iteration or (iteration, node) not in there.early):
                    found.append(f"{node} sends {peer} turn {iteration} again")
            if {iteration for iteration, other in there.early if other == node} - again:
                found.append(f"{node} does not send {peer} all again")
            if state.sent.get(peer, 0) - len(again) != there.read.get(node, 0):
                found.append(f"the copies of {node} at {peer} differ")
    return found


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("slack", [0, 1, 3])
@pytest.mark.parametrize("name", UNDIRECTED)
def test_the_states_of_a_save_fit_together(name: str, slack: int, seed: int) -> None:
    world = SavingWorld(
        make_topology(name, Layout(NODES)),
        ROUNDS,
        drawn(seed, 0.1, 3.0),
        drawn(seed + 100, 0.01, 6.0),
        slack=slack,
        skips=skipping(seed),
        saves=SAVES,
    )
    world.run()
    assert len(world.states) == len(SAVES)
    for states in world.states:
        assert len(states) == NODES
        assert faults_of(states, name) == []


@pytest.mark.parametrize("skips", [lambda node, number: False, skipping(5)], ids=["all step", "some skip"])
@pytest.mark.parametrize("name", UNDIRECTED)
def test_a_run_from_the_states_is_the_one_that_went_on_whatever_the_lines_do(
    name: str, skips: Callable[[int, int], bool]
) -> None:
    topology = make_topology(name, Layout(NODES))
    whole = SavingWorld(topology, ROUNDS, drawn(1, 0.1, 3.0), drawn(2, 0.01, 6.0), skips=skips, saves=(SAVES[2],))
    whole.run()
    for seed in (3, 4):
        again = SavingWorld(
            topology, ROUNDS, drawn(seed, 0.1, 3.0), drawn(seed + 7, 0.01, 6.0), skips=skips, start=whole.states[0]
        )
        again.run()
        assert [node.value for node in again.nodes] == [node.value for node in whole.nodes]
        assert [node.done for node in again.nodes] == [node.done for node in whole.nodes]


def test_a_save_that_a_peer_gave_up_holds_nothing_and_is_never_whole() -> None:
    cut = Cut()
    cut.marked(1, 1, 5)
    assert cut.holds(1)
    assert cut.is_ahead(1)
    cut.given_up(1, 1)
    assert not cut.holds(1)
    assert not cut.is_ahead(1)
    cut.begin()
    assert cut.missing([1, 2]) == [2]
    assert cut.without([1, 2]) == [1]
    cut.end()
    cut.begin()
    assert cut.missing([1]) == [1]
    assert cut.without([1]) == []


def test_a_node_that_ends_reads_on() -> None:
    cut = Cut()
    cut.marked(1, 1, 5)
    cut.close()
    assert not cut.holds(1)
    assert not cut.is_ahead(1)
