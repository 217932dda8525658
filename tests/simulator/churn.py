"""Churn: random nodes leave and return in each round."""

from __future__ import annotations

from simulator.machine import Hardware
from simulator.scenario_numbers import number
from simulator.world import World

LOST_DISK = 0.2
LEAVES_IN_ORDER = 0.3


async def churn(world: World, share: str, nodes: str, rounds: str) -> None:
    """In each round, a share of the nodes leaves or dies, and the same number of absent nodes returns."""
    count, last = int(nodes), world.round + int(rounds)
    rng = world.random
    for index in range(count - len(world.volunteers)):
        hardware = Hardware(samples_s=rng.uniform(0.3, 2), micro_batch=rng.randint(4, 16))
        world.start(world.add(f"n{index}", hardware, rng.uniform(-100e-6, 100e-6)))
    while world.round < last:
        current = world.round
        await world.until(lambda current=current: world.round > current, "the next round")  # type: ignore[misc]
        await _change(world, round(number(share) * count))


async def _change(world: World, count: int) -> None:
    rng = world.random
    here = [volunteer for volunteer in world.volunteers.values() if volunteer.running]
    away = [volunteer for volunteer in world.volunteers.values() if not volunteer.running]
    for volunteer in rng.sample(here, min(count, len(here))):
        if rng.random() < LEAVES_IN_ORDER and volunteer.stop is not None:
            volunteer.stop.set()
        else:
            world.kill(volunteer)
    for volunteer in rng.sample(away, min(count, len(away))):
        if rng.random() < LOST_DISK:
            world.lose_disk(volunteer)
        world.start(volunteer)
