"""A gossip run, from its first topology to its last iteration: lines lose, nodes are killed, others join.

Members, their journals, and the coordinator's directory are the real ones; time, disks and lines are simulated. Nobody
steps, so that whatever moves the mean is a fault of mixing.
"""

from __future__ import annotations

import random
from functools import partial

import torch
from torch import Tensor

from simulator.volunteer import Broken
from support.directed_world import DirectedWorld
from thinwire_proto.gossip.member_state import MemberSettings

ITERATIONS = 20
PARAMETERS = 16
COMPUTE_S, LINE_S = 10.0, 0.5
BEAT_S = 10.0
PATIENCE_S = 15.0
LOST = 0.01
KILLED = 0.02
"""The share of the nodes that is killed for good. As many are killed and come back, and half as many join."""
KILLS_S = (40.0, 70.0)
BACK_S = (1.0, 20.0)
DRIFT_MAX = 1e-6
"""Of the mean of all nodes, relative to the largest parameter."""
ANSWER_BYTES_MAX = 1024
COMPARED_LEAST = 0.5
"""The share of all copies whose ends must have come equally far in the end, so that they were compared."""


def play(nodes: int, seed: int) -> DirectedWorld:
    """Simulate a run. Raises Broken if it has not done what is promised."""
    world, gone, newcomers = _world(nodes, seed)
    first = {number: node.member.x.double() for number, node in world.all.items()}
    world.run()
    for number in gone:
        del world.nodes[number]
    _check_iterations(world, newcomers)
    _check_mean(world, torch.stack(list(first.values())).abs().max())
    _check_copies(world)
    if max(world.answers) > ANSWER_BYTES_MAX:
        raise Broken(f"an answer has {max(world.answers)} bytes")
    if _mean_bytes(world) > ANSWER_BYTES_MAX:
        raise Broken(f"answers have {_mean_bytes(world):.0f} bytes a node and beat, with their assignments")
    return world


def figures(world: DirectedWorld) -> str:
    """The figures of a run, in words."""
    turns = sum(len(node.mixed) for node in world.all.values())
    waited = max(max(node.waited_s, default=0.0) for node in world.nodes.values())
    return (
        f"{len(world.nodes):,} nodes did {ITERATIONS} iterations in {world.now:,.0f} s: {turns:,} turns mixed, "
        f"{len(world.moved()[1])} by one end alone, {world.copies()[0]:,} copies equal, {waited:.1f} s the longest "
        f"wait; {len(world.reasons)} topologies, {world.snapshots:,} of {world.messages:,} messages were snapshots; "
        f"the coordinator sent {_mean_bytes(world):,.0f} bytes a node and beat, at most {max(world.answers):,} without "
        f"a new topology and {max(world.assigning):,} with one"
    )


def _mean_bytes(world: DirectedWorld) -> float:
    answers = world.answers + world.assigning
    return sum(answers) / len(answers)


def _world(nodes: int, seed: int) -> tuple[DirectedWorld, list[int], list[int]]:
    """The world, the nodes that are killed for good, and the newcomers."""
    rng = random.Random(seed)
    world = DirectedWorld(
        nodes,
        MemberSettings("dense", 1.0, 0, PATIENCE_S),
        beat_s=BEAT_S,
        nodes_max=2 * nodes,
        iterations=ITERATIONS,
        parameters=PARAMETERS,
        lost=LOST,
        seed=seed,
        compute_s=lambda node, iteration: COMPUTE_S * (0.95 + 0.1 * ((node * 31 + iteration * 17) % 16) / 16),
        line_s=lambda source, target: LINE_S * (0.5 + (source * 7 + target * 3) % 8 / 8),
    )
    generator = torch.Generator().manual_seed(seed)
    for node in world.all.values():
        node.member.x.add_(torch.randn(PARAMETERS, generator=generator))  # before the first message is made
    killed = max(1, round(KILLED * nodes))
    victims = rng.sample(range(nodes), 2 * killed)
    for place, victim in enumerate(victims):
        at = rng.uniform(*KILLS_S)
        world.at(at, partial(world.kill, victim))
        if place >= killed:
            world.at(at + rng.uniform(*BACK_S), partial(world.restart, victim))
    newcomers: list[int] = []
    for _ in range(max(1, killed // 2)):
        world.at(rng.uniform(*KILLS_S), lambda: newcomers.append(world.come()))
    return world, victims[:killed], newcomers


def _check_iterations(world: DirectedWorld, newcomers: list[int]) -> None:
    for number, node in world.nodes.items():
        if number in newcomers and node.member.waits_to_adopt and not _had_a_turn(world, number):
            continue  # it came too late to hear anybody, and nobody waits for it
        if not node.finished or node.finished[-1][1] != ITERATIONS - 1:
            raise Broken(f"node {number} has not done all iterations: {node.finished[-1:]}")
        if max(node.waited_s) > PATIENCE_S + COMPUTE_S:
            raise Broken(f"node {number} has waited for {max(node.waited_s):.1f} s")
    if not newcomers or not set(newcomers) <= set(world.nodes):
        raise Broken("no newcomer came")
    if not world.directory.topology or not set(newcomers) <= set(world.directory.topology.plan.members):
        raise Broken("a newcomer is in no topology")


def _had_a_turn(world: DirectedWorld, number: int) -> bool:
    """Whether a peer had to send a node anything."""
    assignments = world.all[number].member._assignments
    return any(assignments.at(iteration).turns(iteration) for iteration in range(assignments.first_start, ITERATIONS))


def _check_mean(world: DirectedWorld, largest: Tensor) -> None:
    moved, alone = world.moved()
    if alone:
        raise Broken(f"{len(alone)} turns were mixed by one end alone: {', '.join(alone[:4])}")
    drift = float(moved.abs().max()) / len(world.nodes)
    if drift > DRIFT_MAX * float(largest):
        raise Broken(f"the mean has moved by {drift:.2g}")


def _check_copies(world: DirectedWorld) -> None:
    compared, differing = world.copies()
    if differing:
        raise Broken(f"{len(differing)} copies differ: {', '.join(differing[:4])}")
    held = sum(len(node.member.peers) for node in world.nodes.values())
    if compared < COMPARED_LEAST * held:
        raise Broken(f"only {compared} of {held} copies were compared")
