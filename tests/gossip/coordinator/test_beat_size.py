"""A thousand nodes of a gossip run: what the coordinator sends each of them in a beat, as protobuf."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.gossip_coordinator import GossipCoordinator, gossip_coordinator
from support.small import small_contract
from thinwire_coordinator.gossip.calls import beat_reply
from thinwire_coordinator.gossip.settings import LEASE_RUNS_MAX
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.contract.rules.adamw import AdamWSpec
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
