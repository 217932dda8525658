"""`make simulate`: simulates a large swarm for a long virtual time. `--scenario FILE` runs one scenario instead.

The seed determines everything, so a failure repeats with the same seed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from pathlib import Path

from simulator import virtual_time, without_centre
from simulator.scenario import BadScenario, Scenario
from simulator.volunteer import Broken
from simulator.world import World

ROUND_S = 30
REPORT_S = 10.0

LIFE = """
contract pace=clock length={round_s}s samples=96 nodes_max={nodes_max} min_contributions=2
line delay=60ms jitter=40ms loss=1% rate=10Mbit
start coordinator
churn {churn} of {nodes} nodes a round for {rounds} rounds
expect different = 0
"""


def main() -> None:
    parser = argparse.ArgumentParser("python -m simulator", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hours", type=float, default=24.0, help="hours of virtual time")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--churn", default="5%", help="share of the nodes that is replaced in each round")
    parser.add_argument("--exchange", choices=("star", "gossip"), default="star", help="gossip: a short gossip run")
    parser.add_argument("--scenario", type=Path, metavar="FILE")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="error")
    given = parser.parse_args()
    logging.basicConfig(format="%(name)s: %(message)s", level=given.log_level.upper())
    rounds = max(1, round(given.hours * 3600 / ROUND_S))
    life = LIFE.format(round_s=ROUND_S, nodes_max=given.nodes + 24, churn=given.churn, nodes=given.nodes, rounds=rounds)
    text = given.scenario.read_text() if given.scenario else life
    try:
        if given.exchange == "gossip":
            print(without_centre.figures(without_centre.play(given.nodes, given.seed)))
            return
        virtual_time.run(_run(Scenario(text, given.seed), given.seed))
    except (Broken, BadScenario) as error:
        sys.exit(f"seed {given.seed}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


async def _run(scenario: Scenario, seed: int) -> None:
    began = time.monotonic()
    reporting = asyncio.ensure_future(_report(scenario, began))
    try:
        world = await scenario.run()
        print(f"{_figures(world)}; {time.monotonic() - began:.0f} s of real time, seed {seed}")
        print(f"every promise holds; history {await world.check()}")
    finally:
        reporting.cancel()
        scenario.world.close()


async def _report(scenario: Scenario, began: float) -> None:
    """Print a line every REPORT_S seconds of real time."""
    reported = began
    while True:
        await asyncio.sleep(1.0)
        if time.monotonic() - reported > REPORT_S and scenario.world.sim_coordinator is not None:
            reported = time.monotonic()
            print(_figures(scenario.world), flush=True)


def _figures(world: World) -> str:
    sim_coordinator = world.living_coordinator()
    active = sim_coordinator.swarm.view.active
    return (
        f"{world.now / 3600:7.2f} h: round {world.round:,}, step {world.step:,}, {active:,} nodes active, "
        f"{sim_coordinator.state.ledger.rounds_void} voids, "
        f"{sim_coordinator.swarm.hall.counts.fingerprints_compared:,} replicas compared, "
        f"{world.network.bytes_carried / 1e6:,.1f} MB carried"
    )


if __name__ == "__main__":
    main()
