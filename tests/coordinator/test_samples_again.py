"""The samples of the steps that a run has given up begin again, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from simulator.world import World
from support.rewound import SMALL, TWICE, played
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.leases import Leases
from thinwire_proto.exact.amendments import rewinds


def open_positions(leases: Leases) -> int:
    """Positions below the cursor that nobody has settled."""
    _, free, held = leases.plain()
    runs = [*free, *(run for _, _, granted, trained, reserved in held for run in (*granted, *trained, *reserved))]
    return sum(count for _, count in runs)


@pytest.mark.parametrize("restart", [False, True])
def test_the_samples_of_the_steps_that_are_given_up_may_begin_again(
    restart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[int, int]] = []
    begin_again = Leases.begin_again

    def noted(leases: Leases, samples: int) -> Callable[[], None]:
        settled = leases.cursor - open_positions(leases)
        undo = begin_again(leases, samples)
        assert (open_positions(leases), leases.holders) == (0, set())
        begun.append((samples, settled - leases.cursor))
        return undo

    monkeypatch.setattr(Leases, "begin_again", noted)

    async def look(world: World) -> None:
        coordinator = world.living_coordinator()
        world.amend({"rewind": 10, "samples": "again"})
        await world.until(lambda: bool(rewinds(coordinator.swarm.hall.contract)), "the run goes back")
        ((at, _),) = rewinds(coordinator.swarm.hall.contract).items()
        if restart:
            world.kill_coordinator()
            await asyncio.sleep(5)
            world.start_coordinator()
        await world.until(lambda: world.step >= at + 12, "the run goes on")
        state, leases = world.living_coordinator().state, world.living_coordinator().swarm.hall.leases
        given_up = sum(samples for _, _, counted in state.ledger.counted_at(10, at) for _, samples in counted)
        assert begun == [(given_up, given_up)]
        assert leases.cursor < state.contract.amendments[0].position + given_up
        world.amend({"schedule.learning_rate": 0.001})
        await world.until(lambda: len(world.living_coordinator().swarm.hall.contract.amendments) == 2, "the change")
        first, second = world.living_coordinator().swarm.hall.contract.amendments
        assert second.position >= first.position  # what was granted before keeps the mixture that it had

    played(SMALL + "until step 20\n", look)


def test_samples_that_cannot_begin_again_are_refused() -> None:
    async def look(world: World) -> None:
        swarm = world.living_coordinator().swarm
        orders = [
            Order("one", {"rewind": 18, "samples": "again"}),
            Order("two", {"samples": "again", "schedule.learning_rate": 0.001}),
        ]
        refused: dict[str, str] = {}
        for _ in orders:
            refused |= swarm.amend([one for one in orders if one.id not in refused])
            await asyncio.sleep(20)
        refused |= swarm.amend([])
        assert "step 18 was given up" in refused["one"]
        assert "samples can only be 'again'" in refused["two"]

    played(TWICE, look)
