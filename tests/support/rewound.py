"""Scenarios of a small run, some of which go back, to look at their world afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from simulator import virtual_time
from simulator.scenario import Scenario
from simulator.world import World

SMALL = "contract pace=barrier length=10s steps=60\nstart coordinator\nnodes a b\nstart all\n"
TWICE = SMALL + "until step 20\namend rewind=10\nuntil step 30\namend rewind=15\nuntil step 40\n"
"""It goes back to step 10, and later to a step that it had given up by that."""


def played(text: str, then: Callable[[World], Awaitable[None]]) -> None:
    """Play a scenario, and then look at its world."""

    async def to_its_end() -> None:
        scenario = Scenario(text, 1)
        try:
            await then(await scenario.run())
        finally:
            scenario.world.close()

    virtual_time.run(to_its_end())
