"""A thousand nodes of a run without a centre: what the coordinator sends each of them in a beat, as protobuf."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from support.sealed_run import make_state
from support.small import small_contract
from thinwire_coordinator.gossip.run import GossipRun, make_gossip_run
from thinwire_coordinator.gossip.settings import LEASE_RUNS_MAX
from thinwire_coordinator.rpc.gossip_calls import beat_reply
from thinwire_coordinator.rpc.update_messages import encode_update_parts
from thinwire_coordinator.swarm.assembly import UpdateSource, assemble
from thinwire_coordinator.swarm.members import Member
from thinwire_coordinator.swarm.workers import Workers
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.contract.rules.adamw import AdamWSpec
from thinwire_proto.gossip.report_wire import report_of, sign_report
from thinwire_proto.gossip.reports import SignedReport
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb

NODES = 1000
REPLY_BYTES_MAX = 1024
FAR = 1 << 40
"""A position whose number takes many bytes."""


@dataclass
class Node:
    key: SecretKey
    member: Member
    topology: int = 0
    iteration: int = 0
    number: int = 0
    trained_through: int | None = None
    samples: int = 0

    def report(self) -> SignedReport:
        self.number += 1
        session = bytes.fromhex(self.member.session)
        request = pb.BeatRequest(
            topology=self.topology,
            iteration=self.iteration,
            head=bytes(32),
            samples=self.samples,
            trained_through=self.trained_through,
        )
        sign_report(request, self.number, self.key, session)
        return SignedReport(self.member.node_id, session, self.number, report_of(request), request.signature)


async def beat(run: GossipRun, nodes: list[Node]) -> list[pb.BeatReply]:
    """All nodes report at once."""
    answers = await asyncio.gather(*(run.beats.beat(node.member, node.report(), b"") for node in nodes))
    return [beat_reply(answer) for answer in answers]


def test_a_node_gets_at_most_a_kilobyte_a_beat_and_its_assignment_once(tmp_path: Path) -> None:
    async def scene() -> None:
        contract = small_contract(
            round={"length_ms": 60_000, "nodes_max": NODES, "min_contributions": NODES},
            exchange=GossipSpec(codec="dense"),
            rule=AdamWSpec(samples=1),
        )
        workers = Workers()
        state = make_state(tmp_path, contract)
        replica = state.load_snapshot(0)
        swarm = assemble(state, replica, workers, UpdateSource(encode_update_parts))
        run = make_gossip_run(swarm, replica, 1)
        assert run is not None
        leases = swarm.registry.leases
        leases.cursor = FAR
        nodes = []
        for number in range(NODES):
            key = SecretKey()
            joined = swarm.registry.members.join(key.public, f"node {number}")
            assert joined is not None
            nodes.append(Node(key, joined[0]))
        try:
            for node in nodes:  # what returns from a lost node is in many small ranges
                leases.grant(node.member.node_id, 1, 0)
            for node in nodes[::2]:
                leases.take_back(node.member.node_id)
            await beat(run, nodes)
            replies = await beat(run, nodes)
            assert {reply.state for reply in replies} == {pb.BeatReply.STATE_TRAINING}
            assert all(reply.HasField("assignment") for reply in replies)
            assert max(len(reply.lease) for reply in replies) >= LEASE_RUNS_MAX / 2
            sizes = [reply.ByteSize() - reply.assignment.ByteSize() for reply in replies]
            for node, reply in zip(nodes, replies, strict=True):
                node.topology = reply.assignment.topology
            replies = await beat(run, nodes)
            assert not any(reply.HasField("assignment") for reply in replies)
            sizes += [reply.ByteSize() for reply in replies]
            assert max(sizes) <= REPLY_BYTES_MAX, max(sizes)
            await run.beats.seal()
        finally:
            swarm.stop()
            workers.close()
            state.close()

    asyncio.run(scene())


def test_the_longest_answer_fits() -> None:
    """All fields at their bounds."""
    lease = [pb.SampleRange(start=(1 << 64) - 1, count=(1 << 32) - 1)] * LEASE_RUNS_MAX
    level = pb.ExchangeLevel(codec="x" * 32, every=8, start=(1 << 64) - 1)
    reply = pb.BeatReply(
        state=pb.BeatReply.STATE_TRAINING,
        text="x" * 300,
        next_ms=86_400_000,
        lease=lease,
        measure_at=(1 << 64) - 1,
        level=level,
    )
    assert reply.ByteSize() <= REPLY_BYTES_MAX
