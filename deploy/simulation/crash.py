"""The coordinator dies at a named point of sealing an update: just before, or just after, each thing that it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deploy.simulation.virtual_time import ProcessDied
from deploy.simulation.world import World

POINTS = {
    "the body is about to be written": ("bodies", "put", "before"),
    "the body is written": ("bodies", "put", "after"),
    "the row is about to be written": ("ledger", "append", "before"),
    "the row is in": ("ledger", "append", "after"),
    "the update is about to go out": ("feed", "publish", "before"),
    "the update is out": ("feed", "publish", "after"),
    "receipts are about to go out": ("intake", "close", "before"),
    "receipts are out": ("intake", "close", "after"),
    "leases are about to be written": ("ledger", "record_leases", "before"),
    "leases are written": ("ledger", "record_leases", "after"),
}


def arm(world: World, when: str) -> None:
    """The next time that this comes to pass is the coordinator's last moment."""
    if when not in POINTS:
        raise AssertionError(f"there is no point {when!r}; there are {', '.join(POINTS)}")
    where, name, edge = POINTS[when]
    hub = world.living_hub()
    places = {"bodies": hub.state.bodies, "ledger": hub.state.ledger, "feed": hub.feed, "intake": hub.swarm.intake}
    target: Any = places[where]
    real: Callable[..., Any] = getattr(target, name)

    def dies(*arguments: Any, **named: Any) -> Any:
        setattr(target, name, real)
        if edge == "after":
            real_result = real(*arguments, **named)
            world.kill_coordinator()
            return real_result
        world.kill_coordinator()
        raise ProcessDied

    object.__setattr__(target, name, dies)
