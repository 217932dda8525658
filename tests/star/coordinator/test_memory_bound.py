"""Tests the bound on the coordinator's memory, and the loans of updates that it counts on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from support.adapters import base_folder, made
from support.small import small_contract
from thinwire_coordinator.hall.access.admission import (
    Bounds,
)
from thinwire_coordinator.hall.capacity import PROGRAM_BYTES, frozen_bytes, memory_bound
from thinwire_coordinator.star import feed as feeds
from thinwire_coordinator.star.feed import Feed
from thinwire_coordinator.star.kind import StarKind
from thinwire_coordinator.star.memory import star_memory
from thinwire_coordinator.star.messages import UpdateMessages


def bound(nodes_max: int, **sections: object) -> int:
    contract = small_contract(round={"nodes_max": nodes_max, "weight_max": 1}, **sections)
    return memory_bound(contract, Bounds(nodes_max), star_memory(contract)).total_bytes


def test_the_bound_follows_from_the_contract() -> None:
    assert PROGRAM_BYTES < bound(1) < bound(16) < bound(1024) < bound(8192)
    assert bound(16, demo={"k": 8}) < bound(16, demo={"k": 176})


@pytest.mark.parametrize(
    ("dtype", "held"), [(torch.bfloat16, 2), (torch.float16, 4), (torch.float32, 4)], ids=["bf16", "f16", "f32"]
)
def test_a_base_is_counted_as_it_is_held(dtype: torch.dtype, held: int, tmp_path: Path) -> None:
    task, contract, blobs = made(base_folder(tmp_path / "base", dtype), tmp_path / "blobs")
    base = [tensor for tensor in task.model("cpu", blobs).parameters() if not tensor.requires_grad]
    frozen = frozen_bytes(contract, blobs)
    assert frozen == held * sum(tensor.numel() for tensor in base) == sum(tensor.nbytes for tensor in base)
    without, with_base = (memory_bound(contract, Bounds(1), star_memory(contract), size) for size in (0, frozen))
    assert with_base.named["model"] - without.named["model"] == frozen
    assert StarKind().memory(contract, frozen, audits=True) == StarKind().memory(contract, 0, audits=True)


def sized(step: int) -> UpdateMessages:
    return UpdateMessages(b"", (), step + 1, size=60)


async def test_updates_outside_the_cache_share_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "CATCH_UP_BYTES_MAX", 120)  # two updates

    async def read(step: int) -> UpdateMessages:
        return sized(step)

    feed = Feed(read, 10, cache_bytes_max=60)
    held, let_go = list[int](), asyncio.Event()

    async def hold(step: int) -> None:
        async with feed.lend(step) as loan:
            assert loan.update == sized(step)
            held.append(step)
            await let_go.wait()
            assert loan.may_stay()

    holders = [asyncio.ensure_future(hold(step)) for step in range(5)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert held == [0, 1]
    let_go.set()
    await asyncio.gather(*holders)
    assert sorted(held) == [0, 1, 2, 3, 4]


async def test_a_follower_that_the_cache_overtakes_stays_only_if_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeds, "CATCH_UP_BYTES_MAX", 60)  # one update

    async def read(step: int) -> UpdateMessages:
        return sized(step)

    feed = Feed(read, 0, cache_bytes_max=60)
    await feed.publish(sized(0))
    async with feed.lend(0) as first, feed.lend(0) as second:
        assert first.may_stay()
        assert second.may_stay()
        await feed.publish(sized(1))
        assert first.may_stay()
        assert not second.may_stay()
    async with feed.lend(0) as later:  # the first one's room is free again
        assert later.may_stay()
