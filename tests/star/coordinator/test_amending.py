"""Amendments come into force between two rounds, all that are due together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.small import small_contract
from support.swarm_bench import PATIENCE_S, Bench
from thinwire_common.within import Within
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.capacity import after_orders
from thinwire_coordinator.hall.events import Event, RoundOpened
from thinwire_coordinator.star.feed import largest_update
from thinwire_coordinator.star.intake import ARRIVING_LEAST
from thinwire_coordinator.star.memory import star_memory
from thinwire_coordinator.star.round.announcements import RoundAnnouncement
from thinwire_proto.contract import TILE_EDGE, DemoSpec
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.exact.amendments import amended
from thinwire_proto.wire.codec import contribution_bytes_max, update_bytes_max

MINIMUM = Order("one", {"round.min_contributions": 1})
TOPK = Order("two", {"demo.update_topk": 8})


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path, min_contributions=2)
    yield bench
    await bench.close()


async def test_a_round_that_opens_by_an_amendment_has_all_of_them(bench: Bench) -> None:
    opened: list[int] = []

    def watch(event: Event) -> None:
        if isinstance(event, RoundOpened):
            opened.append(bench.swarm.hall.contract.demo.update_topk)

    bench.swarm.events.watchers.append(watch)
    await bench.attend(bench.join("a"))
    assert bench.swarm.amend([MINIMUM, TOPK]) == {}
    assert opened == [8]
    assert [amendment.step for amendment in bench.swarm.hall.contract.amendments] == [0, 0]


async def test_what_holds_after_a_void_round_is_on_disk_before_that_is_announced(tmp_path: Path) -> None:
    bench = Bench(tmp_path, length_ms=400, min_contributions=2)
    one, two = bench.join("a"), bench.join("b")
    streams = [await bench.attend(member) for member in (one, two)]
    first, gate, record = bench.current.round, threading.Event(), bench.state.ledger.record_leases

    def record_slowly(packed: bytes) -> None:
        assert gate.wait(PATIENCE_S)
        record(packed)

    async def announced_after(number: int) -> RoundAnnouncement:
        rounds = (found async for found in streams[0] if isinstance(found, RoundAnnouncement))
        return await anext(found async for found in rounds if found.number > number)

    object.__setattr__(bench.state.ledger, "record_leases", record_slowly)
    bench.swarm.amend([Order("one", {"schedule.weight_decay": 0.1})])
    next_one = asyncio.ensure_future(announced_after(first.number))
    async with Within(PATIENCE_S):
        while bench.swarm.intake.current is None or bench.current.round is first:
            await asyncio.sleep(0.01)
        await asyncio.wait({next_one}, timeout=0.1)
        is_early = next_one.done()
        gate.set()
        await next_one
    assert not is_early
    assert len(bench.swarm.hall.contract.amendments) == 1
    await bench.close()


async def test_an_open_round_ends_under_the_terms_that_it_began_with(bench: Bench) -> None:
    await bench.attend(bench.join("a"))
    await bench.attend(bench.join("b"))
    assert bench.swarm.driver.machine.round is not None
    bench.swarm.amend([MINIMUM, TOPK])
    assert bench.swarm.hall.contract.amendments == ()
    assert bench.swarm.hall.contract.round.min_contributions == 2


async def test_finer_levels_have_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger contributions are taken, and larger updates can be sent to those that catch up."""
    monkeypatch.setattr("thinwire_coordinator.star.feed.CATCH_UP_BYTES_MAX", 1)
    monkeypatch.setattr("thinwire_coordinator.star.intake.ARRIVING_BYTES_MAX", 1)
    demo = DemoSpec(magnitude="tile", k=TILE_EDGE**2, update_levels=1, vote_levels=1)
    bench = Bench(tmp_path, demo, min_contributions=2, nodes_max=40)
    bench.swarm.amend([Order("one", {"demo.vote_levels": 100, "demo.update_levels": 100})])
    layout, intake = bench.swarm.hall.layout, bench.swarm.intake
    assert intake.payload_bytes_max == contribution_bytes_max(layout, demo.k, "tile", whole=True, levels=100)
    assert intake.room.total >= ARRIVING_LEAST * intake.payload_bytes_max
    largest = update_bytes_max(layout, "tile", 100)
    assert bench.swarm.feed._room.total == 2 * largest
    bench.swarm.amend([Order("two", {"demo.update_levels": 1})])
    assert update_bytes_max(layout, "tile", 1) < largest == largest_update(bench.swarm.hall.contract)  # for a restart
    await bench.close()


async def test_what_the_run_cannot_have_is_refused_once(bench: Bench) -> None:
    too_early = Order("three", {"schedule.steps": 0})
    assert "three" in bench.swarm.amend([too_early, MINIMUM])
    assert [amendment.id for amendment in bench.swarm.hall.contract.amendments] == ["one"]
    assert bench.swarm.amend([MINIMUM]) == {}
    assert len(bench.swarm.hall.contract.amendments) == 1


async def test_updates_that_once_left_votes_out_may_bring_repeated_ones_for_ever(bench: Bench) -> None:
    """Otherwise honest nodes, which send again what was left out, would be suspected."""
    bench.swarm.amend([TOPK])
    for letter in "ab":
        await bench.attend(bench.join(letter))
    assert bench.swarm.observer._comparer.may_repeat


def test_memory_is_bounded_for_what_waits_too() -> None:
    """Also after an order that the run cannot have, one that is in force, and one that goes back."""
    coarse = small_contract(rule={"kind": "merged_muon"}, round={"nodes_max": 100})
    begun = amended(coarse, Amendment(2, {"demo.vote_levels": 5}, id="begun"))
    waiting = [
        Order("begun", {"demo.vote_levels": 3}, at=2),
        Order("cannot", {"schedule.steps": 0}),
        Order("fine", {"demo.vote_levels": 9, "demo.update_levels": 15}, at=50),
        Order("back", {"rewind": 1, "round.samples": 3}),
    ]
    later = after_orders(begun, waiting)
    assert (later.demo.vote_levels, later.demo.update_levels, later.round.samples) == (9, 15, 3)
    assert star_memory(later).total_bytes > star_memory(begun).total_bytes
