"""What the organizer's commands write to the file is carried out: bans, pardons and pauses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from support.swarm_bench import Bench
from thinwire_coordinator.hall.access.settings import Order, Pause
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.run import watch_orders

NOW = 1_790_000_000.0


@pytest.fixture(autouse=True)
def _polls_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire_coordinator.hall.run.ORDERS_READ_S", 0.01)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    await bench.close()


async def test_a_ban_ends_the_session_and_lifting_it_is_a_pardon(bench: Bench, tmp_path: Path) -> None:
    with closing(AccessStore(tmp_path)) as access:
        member = bench.join("a")
        stream = await bench.attend(member)
        watching = asyncio.ensure_future(watch_orders(bench.swarm, access, wall_clock=lambda: NOW))
        access.bans.ban(member.node_id, NOW + 60, "it votes at random", "coordinator", NOW)
        async for _ in stream:
            pass
        assert not member.active
        assert member.session not in bench.swarm.members.by_session
        assert member.expelled is not None
        assert "it votes at random" in member.expelled.text

        standing = bench.swarm.observer.trust.of(member.node_id)
        assert standing.pardoned == 0
        access.bans.unban(member.node_id, "a mistake", "organizer", NOW)
        while not standing.pardoned:
            await asyncio.sleep(0.01)
        watching.cancel()


async def test_a_pause_is_announced_and_ends_by_itself(bench: Bench, tmp_path: Path) -> None:
    now = [NOW]
    with closing(AccessStore(tmp_path)) as access:
        stream = await bench.attend(bench.join("a"))
        watching = asyncio.ensure_future(watch_orders(bench.swarm, access, wall_clock=lambda: now[0]))
        access.pauses.begin(Pause(NOW, NOW + 3600, "a storm"))
        while bench.swarm.hall.pause is None:
            await asyncio.sleep(0.01)
        assert bench.swarm.view.pause is not None
        assert "a storm" in bench.swarm.view.pause.text
        now[0] = NOW + 3600
        while bench.swarm.hall.pause is not None:
            await asyncio.sleep(0.01)
        await stream.aclose()
        watching.cancel()


def test_amendments_that_are_ordered_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    def order(command: int) -> None:
        with closing(AccessStore(tmp_path)) as access:
            for number in range(20):
                access.amendments.add(Order(f"{command}-{number}", {"schedule.learning_rate": 0.001}), ())

    with closing(AccessStore(tmp_path)) as access, ThreadPoolExecutor(4) as commands:
        list(commands.map(order, range(4)))
        assert len(access.amendments.waiting()) == 80
