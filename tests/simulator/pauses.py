"""Eight nodes in a gossip run, whose pauses are longer than their beats: living ones are left out and come back.

Two are killed for good, two join, and some are killed and come back soon. Iterations are short and irregular, lines
lose, and nobody steps, so that whatever moves the mean is a fault of mixing.

python -m simulator.pauses [--seeds 60] [--topology ring] [--restarts] [--slack 2] [--lost 0.03] [--away 15]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from dataclasses import dataclass, fields
from functools import partial

from simulator.volunteer import Broken
from support.directed_world import DirectedWorld
from thinwire_proto.gossip.member_state import MemberSettings

NODES, KILLED, COMING, RESTARTED = 8, 2, 2, 3
ITERATIONS = 100
PARAMETERS = 16
BEAT_S, PATIENCE_S = 0.5, 5.0
FIRST_S, THEN_S, FIRST_ITERATIONS = 0.25, 0.12, 10
"""Seconds of an iteration, which varies by a factor of six. The first ones are slow, so that the lead is too short."""
PAUSES, PAUSE_S = 3, (2.0, 4.0, 6.0)
AWAY_SHARES = (0.15, 0.5, 1.0)
LINE_S, LINE_STEP_S = 0.02, 0.01
OVER_S = 150.0
"""By then all have done their iterations."""


@dataclass(frozen=True)
class Kind:
    """topology: its kind. slack: of the nodes. restarts: whether some are killed and come back. lost: share of the
    messages, which break their line. away_s: the longest time to come back. In more than LINGER_ITERATIONS of its
    peers a node loses its edges, and the mean moves."""

    topology: str = "one-peer-exponential"
    slack: int = 0
    restarts: bool = False
    lost: float = 0.005
    away_s: float = 2.0


@dataclass(frozen=True)
class Outcome:
    """mixed: turns by one end. skipped: iterations that nodes have not done between their first and their last. stalls:
    waits of at least half the patience. snapshots: messages that begin an edge."""

    mixed: int
    skipped: int
    stalls: int
    topologies: int
    snapshots: int
    messages: int


FIGURES = tuple(field.name for field in fields(Outcome))


def play(seed: int, kind: Kind) -> Outcome:
    """Simulate a run. Raises Broken if one end alone has mixed a turn, copies differ, or a node does not finish."""
    world, killed = _world(seed, kind)
    world.run(until_s=OVER_S)
    for number in killed:
        del world.nodes[number]
    _, alone = world.moved()
    if alone:
        raise Broken(f"seed {seed}: {len(alone)} turns were mixed by one end alone: {', '.join(alone[:4])}")
    compared, differing = world.copies()
    if differing or not compared:
        raise Broken(f"seed {seed}: of {compared} copies {len(differing)} differ: {', '.join(differing[:4])}")
    nodes = [node for node in world.nodes.values() if not node.member.waits_to_adopt]  # others came too late
    if len(nodes) < NODES - KILLED or any(node.finished[-1][1] != ITERATIONS - 1 for node in nodes):
        raise Broken(f"seed {seed}: not all nodes have done all iterations")
    done = [node.finished for node in nodes]
    return Outcome(
        mixed=sum(len(world.all[number].mixed) for number in world.nodes),
        skipped=sum(of[-1][1] - of[0][1] + 1 - len({iteration for _, iteration in of}) for of in done),
        stalls=sum(wait >= PATIENCE_S / 2 for node in nodes for wait in node.waited_s),
        topologies=len(world.reasons),
        snapshots=world.snapshots,
        messages=world.messages,
    )


def _world(seed: int, kind: Kind) -> tuple[DirectedWorld, list[int]]:
    """The world, and the nodes that are killed for good."""
    rng = random.Random(seed)
    pauses = {(rng.randrange(NODES + COMING), rng.randrange(3, 60)): rng.choice(PAUSE_S) for _ in range(PAUSES)}

    def compute_s(node: int, iteration: int) -> float:
        usual = FIRST_S if iteration < FIRST_ITERATIONS else THEN_S
        varies = random.Random((seed * ITERATIONS + iteration) * (NODES + COMING) + node).uniform(0.3, 1.7)
        return pauses.get((node, iteration), usual * varies)

    world = DirectedWorld(
        NODES,
        MemberSettings("dense", 1.0, kind.slack, PATIENCE_S),
        topology=kind.topology,
        beat_s=BEAT_S,
        nodes_max=2 * NODES,
        iterations=ITERATIONS,
        parameters=PARAMETERS,
        lost=kind.lost,
        seed=seed,
        compute_s=compute_s,
        line_s=lambda source, target: LINE_S + LINE_STEP_S * ((source * 7 + target * 3) % 8),
    )
    for number, node in world.all.items():
        node.member.x.add_(float(number))
    killed = rng.sample(range(NODES), KILLED)
    for victim in killed:
        world.at(rng.uniform(1.5, 3.0), partial(world.kill, victim))
    for _ in range(COMING):
        world.at(rng.uniform(1.5, 5.0), world.come)
    for victim in rng.sample(sorted({*range(NODES)} - {*killed}), RESTARTED if kind.restarts else 0):
        at = rng.uniform(1.5, 15.0)
        world.at(at, partial(world.kill, victim))
        world.at(at + kind.away_s * rng.choice(AWAY_SHARES), partial(world.restart, victim))
    return world, killed


def main() -> None:
    parser = argparse.ArgumentParser("python -m simulator.pauses", description=__doc__)
    parser.add_argument("--seeds", type=int, default=60, help="runs, of seeds from 0 on")
    parser.add_argument("--topology", default="one-peer-exponential")
    parser.add_argument("--slack", type=int, default=0)
    parser.add_argument("--restarts", action="store_true", help="kill three more nodes, which come back")
    parser.add_argument("--lost", type=float, default=0.005, help="share of the messages that are lost")
    parser.add_argument("--away", type=float, default=2.0, metavar="SECONDS", help="the longest time to come back")
    given = parser.parse_args()
    kind = Kind(given.topology, given.slack, given.restarts, given.lost, given.away)
    outcomes, broken = [], []
    for seed in range(given.seeds):
        try:
            outcomes.append(play(seed, kind))
        except Broken as error:
            broken.append(str(error))
    means = {name: statistics.fmean(getattr(of, name) for of in outcomes) for name in FIGURES} if outcomes else {}
    figures = ", ".join(f"{mean:,.0f} {name}" for name, mean in means.items())
    print(f"{len(outcomes)} of {given.seeds} runs kept the mean; in one of these: {figures}")
    if broken:
        sys.exit("\n".join(broken))


if __name__ == "__main__":
    main()
