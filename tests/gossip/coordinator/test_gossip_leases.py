"""The leases of a gossip run are long enough from the first iteration on, so that no node waits for one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.gossip_coordinator import gossip_coordinator
from support.small import small_contract
from thinwire_coordinator.gossip.beats import BeatAnswer
from thinwire_coordinator.gossip.settings import LEASE_BEATS, LEASE_FIRST
from thinwire_proto.limits import LOOK_AGAIN_S

BEAT_S, SAMPLES, NODES = 10, 2, 2
CONTRACT = small_contract(
    exchange={"kind": "gossip", "topology": "complete", "codec": "dense"},
    rule={"kind": "adamw", "samples": SAMPLES},
    schedule={"steps": 100_000, "warmup_steps": 1, "learning_rate": 1e-3},
    round={"pace": "clock", "length_ms": 1000 * BEAT_S, "min_contributions": NODES},
)


def iterations(answer: BeatAnswer) -> int:
    return sum(run.count for run in answer.lease) // SAMPLES


def test_a_node_of_unknown_pace_reports_soon_and_its_computing_tells_how_much_it_needs(tmp_path: Path) -> None:
    async def scene() -> None:
        with gossip_coordinator(tmp_path, CONTRACT) as coordinator:
            nodes = coordinator.join(NODES)
            await coordinator.beat(*nodes)
            for answer in await coordinator.beat(*nodes):
                assert (answer.next_s, iterations(answer)) == (LOOK_AGAIN_S, LEASE_FIRST)
            node, other = nodes
            coordinator.run.beats.directory.by_node[other.node_id].since -= 3 * LOOK_AGAIN_S
            (answer,) = await coordinator.beat(other)
            assert answer.next_s == BEAT_S  # an iteration takes so long that its first lease lasts
            node.iteration, node.head = 16, bytes(32)
            node.samples, node.compute_ms = 16 * SAMPLES, 2000  # eight iterations a second
            node.trained_through = coordinator.run.hall.leases.granted(node.node_id)[0].start + node.samples - 1
            (answer,) = await coordinator.beat(node)
            assert (answer.next_s, iterations(answer)) == (BEAT_S, LEASE_BEATS * BEAT_S * 8)

    asyncio.run(scene())


def test_a_node_that_joins_has_a_lease_for_the_pace_of_the_others(tmp_path: Path) -> None:
    """Otherwise it waits for its second lease soon after it begins, and its peers wait for it."""

    async def scene() -> None:
        with gossip_coordinator(tmp_path, CONTRACT) as coordinator:
            nodes = coordinator.join(NODES)
            for _ in range(2):  # and they have the topology
                await coordinator.beat(*nodes)
            directory = coordinator.run.beats.directory
            for known, pace in zip(directory.running, (6.0, 3.0), strict=True):
                known.pace = pace
            directory._formed_at -= BEAT_S  # a younger topology is kept
            (newcomer,) = coordinator.join(1)
            await coordinator.beat(newcomer)
            (answer,) = await coordinator.beat(newcomer)
            assert (answer.next_s, iterations(answer)) == (LOOK_AGAIN_S, LEASE_BEATS * BEAT_S * 6)

    asyncio.run(scene())
