"""Fail-overs at random moments in virtual time, among other faults, with steps that are sealed after the standby."""

from __future__ import annotations

import asyncio
import random

import pytest

from simulator import virtual_time
from simulator.scenario import Scenario
from simulator.world import World

BEGIN = """
contract pace=barrier length=10s
steps are sealed after the standby
start coordinator
start standby
nodes a b c d
start all
until step 3
"""
FAULTS = 10


async def fault(world: World, chance: random.Random) -> str:
    """One fault, after which all that was there is there again. Returns its name."""
    second, name = world.second, chance.choice(["machine", "coordinator", "standby", "line", "node", "rewind"])
    await asyncio.sleep(chance.uniform(0, 20))
    if name == "machine":
        second.lose_machine()
        await asyncio.sleep(chance.uniform(0, 30))
        second.promote()
        second.start()
    elif name == "coordinator":
        world.kill_coordinator()
        await asyncio.sleep(chance.uniform(0, 30))
        world.start_coordinator()
    elif name == "standby":
        second.kill()
        await asyncio.sleep(chance.uniform(0, 60))
        second.start()
    elif name == "line":
        second.cut_off()
        await asyncio.sleep(chance.uniform(0, 60))
        second.is_cut_off = False
    elif name == "rewind":
        before = len(world.living_coordinator().state.ledger.amendments())
        world.amend({"rewind": world.step - chance.randint(1, 3)})
        await world.until(
            lambda: len(world.living_coordinator().state.ledger.amendments()) > before, "the row that goes back"
        )
    else:
        volunteer = chance.choice(list(world.volunteers.values()))
        world.kill(volunteer)
        await asyncio.sleep(chance.uniform(1, 30))
        world.start(volunteer)
    return name


async def goes_on(world: World, step: int, name: str) -> None:
    await world.until(lambda: world.step >= step, f"step {step} after the loss of the {name}")


@pytest.mark.parametrize("seed", range(1, 4))
def test_no_sealed_step_is_lost_whatever_fails_in_turn(seed: int) -> None:
    async def scene() -> None:
        chance, scenario = random.Random(seed), Scenario(BEGIN, seed)
        try:
            world = await scenario.run()
            for _ in range(FAULTS):
                seen = max(volunteer.state.head.step for volunteer in world.volunteers.values() if volunteer.state.head)
                name = await fault(world, chance)
                assert world.step >= seen, name
                await goes_on(world, seen + 2, name)
            await world.check()
            for volunteer in world.volunteers.values():
                assert volunteer.failures == 0
                assert volunteer.node is None or volunteer.node.record.resyncs == 0
        finally:
            scenario.world.close()

    virtual_time.run(scene())
