"""Beats of a gossip run: how many bytes a node is sent, and leases that are long enough from the first iteration on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.gossip_coordinator import GossipCoordinator, gossip_coordinator
from support.small import small_contract
from thinwire_coordinator.gossip.beats import BeatAnswer
from thinwire_coordinator.gossip.calls import beat_reply
from thinwire_coordinator.gossip.settings import LEASE_BEATS, LEASE_FIRST, LEASE_RUNS_MAX
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.contract.rules.adamw import AdamWSpec
from thinwire_proto.limits import LOOK_AGAIN_S
from thinwire_proto.wire import service_pb2 as pb

NODES = 1000
REPLY_BYTES_MAX = 1024
FAR = 1 << 40
"""A position whose number takes many bytes."""


async def beat(coordinator: GossipCoordinator) -> list[pb.BeatReply]:
    return [beat_reply(answer) for answer in await coordinator.beat()]


def test_a_node_gets_at_most_a_kilobyte_a_beat_and_its_assignment_once(tmp_path: Path) -> None:
    async def scene() -> None:
        contract = small_contract(
            round={"length_ms": 60_000, "nodes_max": NODES, "min_contributions": NODES},
            exchange=GossipSpec(codec="dense"),
            rule=AdamWSpec(samples=1),
        )
        with gossip_coordinator(tmp_path, contract) as coordinator:
            leases = coordinator.run.hall.leases
            leases.cursor = FAR
            nodes = coordinator.join(NODES)
            for node in nodes:  # what returns from a lost node is in many small ranges
                leases.grant(node.node_id, 1, 0)
            for node in nodes[::2]:
                leases.take_back(node.node_id)
            await coordinator.beat()
            for node in nodes:
                node.topology = 0  # the answer was lost
            replies = await beat(coordinator)
            assert {reply.state for reply in replies} == {pb.BeatReply.STATE_TRAINING}
            assert all(reply.HasField("assignment") for reply in replies)
            assert max(len(reply.lease) for reply in replies) >= LEASE_RUNS_MAX / 2
            sizes = [reply.ByteSize() - reply.assignment.ByteSize() for reply in replies]
            replies = await beat(coordinator)
            assert not any(reply.HasField("assignment") for reply in replies)
            sizes += [reply.ByteSize() for reply in replies]
            assert max(sizes) <= REPLY_BYTES_MAX, max(sizes)
            await coordinator.run.beats.seal()

    asyncio.run(scene())


BEAT_S, SAMPLES, FEW = 10, 2, 2
CONTRACT = small_contract(
    exchange={"kind": "gossip", "topology": "complete", "codec": "dense"},
    rule={"kind": "adamw", "samples": SAMPLES},
    schedule={"steps": 100_000, "warmup_steps": 1, "learning_rate": 1e-3},
    round={"pace": "clock", "length_ms": 1000 * BEAT_S, "min_contributions": FEW},
)


def iterations(answer: BeatAnswer) -> int:
    return sum(run.count for run in answer.lease) // SAMPLES


def test_a_node_of_unknown_pace_reports_soon_and_its_computing_tells_how_much_it_needs(tmp_path: Path) -> None:
    async def scene() -> None:
        with gossip_coordinator(tmp_path, CONTRACT) as coordinator:
            nodes = coordinator.join(FEW)
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
            nodes = coordinator.join(FEW)
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
