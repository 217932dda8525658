"""Kills the coordinator at a named point while it seals an update: just before or just after an action, or while its
messages are in flight."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from simulator.virtual_time import ProcessDied
from simulator.world import World

POINTS = {
    "the body is about to be written": ("bodies", "put", "before"),
    "the body is written": ("bodies", "put", "after"),
    "the row is about to be written": ("ledger", "append", "before"),
    "the row is in": ("ledger", "append", "after"),
    "the update is out": ("feed", "publish", "on its way"),
    "receipts are out": ("intake", "close", "on its way"),
}


def arm(world: World, when: str) -> None:
    """Kill the coordinator the next time that it reaches this point."""
    if when not in POINTS:
        raise AssertionError(f"unknown point {when!r}; known points: {', '.join(POINTS)}")
    owner, name, edge = POINTS[when]
    sim_coordinator = world.living_coordinator()
    owners = {
        "bodies": sim_coordinator.state.bodies,
        "ledger": sim_coordinator.state.ledger,
        "feed": sim_coordinator.swarm.feed,
        "intake": sim_coordinator.swarm.intake,
    }
    target: Any = owners[owner]
    real: Callable[..., Any] = getattr(target, name)

    def dies(*arguments: Any, **named: Any) -> Any:
        setattr(target, name, real)
        if edge == "before":
            world.kill_coordinator()
            raise ProcessDied
        real_result = real(*arguments, **named)
        if edge == "on its way":
            return _die_soon(world, real_result)
        world.kill_coordinator()
        return real_result

    object.__setattr__(target, name, dies)


def _die_soon(world: World, real_result: Any) -> Any:
    """Kill the coordinator after the travel time of a packet, so that some nodes get the message and some never do.

    The code behind an awaited call does not run."""
    lag_s = world.network.travel_s("")  # no particular node, so the line named last
    if not inspect.isawaitable(real_result):
        asyncio.get_running_loop().call_later(lag_s, world.kill_coordinator)
        return real_result
    return _awaited(world, real_result, lag_s)


async def _awaited(world: World, call: Awaitable[Any], lag_s: float) -> NoReturn:
    await call
    await asyncio.sleep(lag_s)
    world.kill_coordinator()
    raise ProcessDied
