"""What places by the speed of the lines gain over places at random, by going through iterations one by one.

python -m bench.decentralized.places

The rates up are drawn log-normal around 10 Mbit/s, those down are five times as high, and nodes are at three sites.
Messages of a megabyte take as long as computing, or three times as long. Computing varies by 15%.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thinwire_planner.timing.network import Network, lines_between
from thinwire_proto.gossip.arcs import Arcs, cycle_of
from thinwire_proto.gossip.placement import LineSeconds, place
from thinwire_proto.gossip.topology import Layout, make_topology

TOPOLOGIES = ("ring", "one-peer-exponential", "matching", "random-regular", "tree")
NODES = (7, 8, 12, 16, 64)
DRAWS, RANDOM_PLACES = 2, 6
MESSAGE_BYTES = 1e6
MESSAGE_OVER_COMPUTING = (1.0, 3.0)
ROUND_TRIPS_S = np.asarray([[0.02, 0.09, 0.16], [0.09, 0.02, 0.22], [0.16, 0.22, 0.02]])
RATE_BITS_S, RATE_SIGMA, DOWN_OVER_UP = 10e6, 0.7, 5
VARIATION = 0.15
ITERATIONS, WARMUP = 200, 50
SEED = 11


def main() -> None:
    rng = np.random.default_rng(SEED)
    print("an iteration, over that with places at random\n\n| topology | least | most | mean |\n|---|---|---|---|")
    for topology in TOPOLOGIES:
        found = [_gain(topology, nodes, rng, over) for nodes in NODES for over in MESSAGE_OVER_COMPUTING * DRAWS]
        print(f"| {topology} | {min(found):.2f} | {max(found):.2f} | {np.mean(found):.2f} |", flush=True)


def _gain(topology: str, nodes: int, rng: np.random.Generator, over: float) -> float:
    up = RATE_BITS_S * rng.lognormal(0.0, RATE_SIGMA, nodes)
    sites = rng.permutation(np.arange(nodes) % len(ROUND_TRIPS_S))
    lines = lines_between(Network(up, DOWN_OVER_UP * up, sites, ROUND_TRIPS_S), MESSAGE_BYTES)
    whole_s = (lines.sending_s + lines.delay_s)[~np.eye(nodes, dtype=bool)]
    computing_s = np.full(nodes, np.median(whole_s) / over)
    cycle = cycle_of(make_topology(topology, Layout(nodes)))
    placed = np.asarray(place(cycle, lines, computing_s, SEED))
    drawn = [_iteration_s(cycle, lines, computing_s, rng.permutation(nodes)) for _ in range(RANDOM_PLACES)]
    return float(_iteration_s(cycle, lines, computing_s, placed) / np.mean(drawn))


def _iteration_s(
    cycle: tuple[Arcs, ...], lines: LineSeconds, computing_s: NDArray[np.float64], order: NDArray[np.intp]
) -> float:
    """Mean seconds of an iteration after WARMUP of them. A line carries one message after the other."""
    varied = np.random.default_rng(SEED).lognormal(0.0, VARIATION, (ITERATIONS, len(order)))
    finished, free, since = np.zeros(len(order)), np.zeros(len(order)), 0.0
    for iteration in range(ITERATIONS):
        if iteration == WARMUP:
            since = float(finished.mean())
        left, finished = finished, finished + varied[iteration] * computing_s[order]
        for senders, receivers in cycle[iteration % len(cycle)].parts:
            ends = order[senders], order[receivers]
            free[senders] = np.maximum(free[senders], left[senders]) + lines.sending_s[ends]
            finished[receivers] = np.maximum(finished[receivers], free[senders] + lines.delay_s[ends])
    return (float(finished.mean()) - since) / (ITERATIONS - WARMUP)


if __name__ == "__main__":
    main()
