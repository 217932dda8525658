"""Members that come back after a long absence, that are forgotten, or that begin anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from support.gossip_coordinator import GossipCoordinator, ReportingNode, gossip_coordinator
from support.small import small_contract
from thinwire_coordinator.gossip import settings
from thinwire_coordinator.gossip.beats import BeatAnswer, ReportRefused

NODES_MAX = 3
CONTRACT = small_contract(
    exchange={"kind": "gossip", "topology": "complete", "codec": "dense"},
    rule={"kind": "adamw", "samples": 2},
    schedule={"steps": 1000, "warmup_steps": 1, "learning_rate": 1e-3},
    round={"pace": "clock", "length_ms": 50, "min_contributions": 2, "nodes_max": NODES_MAX, "momentum_age_max": 1},
)
Scene = Callable[[GossipCoordinator], Coroutine[Any, Any, None]]


def played(folder: Path, scene: Scene) -> None:
    async def play() -> None:
        with gossip_coordinator(folder, CONTRACT) as coordinator:
            await scene(coordinator)

    asyncio.run(play())


@pytest.fixture(autouse=True)
def soon_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "LOST_AFTER_S", 0.1)


async def training(coordinator: GossipCoordinator, count: int = 2) -> dict[str, BeatAnswer]:
    """Nodes in the first topology, with leases."""
    nodes = coordinator.join(count)
    await coordinator.beat(*nodes)
    return {node.node_id: answer for node, answer in zip(nodes, await coordinator.beat(*nodes), strict=True)}


async def absent(coordinator: GossipCoordinator) -> None:
    """So long that the leases of those that are silent go to others."""
    for _ in range(6):
        await asyncio.sleep(0.05)
        await coordinator.run.beats.seal()


def has_trained(node: ReportingNode, answer: BeatAnswer, samples: int) -> None:
    node.iteration += samples // 2
    node.head = bytes(32)
    node.samples, node.trained_through = samples, answer.lease[0].start + samples - 1


def test_a_node_that_was_away_for_long_goes_on_and_what_it_had_not_reported_counts_nothing(tmp_path: Path) -> None:
    async def scene(coordinator: GossipCoordinator) -> None:
        answers = await training(coordinator)
        node = coordinator.nodes[0]
        has_trained(node, answers[node.node_id], 4)
        await absent(coordinator)
        coordinator.again(node)
        (answer,) = await coordinator.beat(node)
        assert answer.stage == "training"
        (entry,) = coordinator.run.beats._store.unsealed.take()
        assert entry.samples == 0
        node.samples = 0
        (answer,) = await coordinator.beat(node)
        has_trained(node, answer, 2)
        await coordinator.beat(node)  # and its new lease counts
        assert [entry.samples for entry in coordinator.run.beats._store.unsealed.take()][-1] == 2

    played(tmp_path, scene)


def test_only_a_node_that_has_mixed_nothing_may_begin_anew(tmp_path: Path) -> None:
    """`verify` demands the same of the ledger."""

    async def scene(coordinator: GossipCoordinator) -> None:
        answers = await training(coordinator)
        node = coordinator.nodes[0]
        genesis = node.head
        has_trained(node, answers[node.node_id], 4)
        await coordinator.beat(node)
        node.iteration, node.samples, node.trained_through = 0, 0, None
        with pytest.raises(ReportRefused, match="older than its reports"):
            await coordinator.beat(node)
        node.head = genesis
        await coordinator.beat(node)

    played(tmp_path, scene)
