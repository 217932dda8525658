"""The coordinator of a gossip run in this process, and nodes that report to it and deposit."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from support.new_state import make_state
from thinwire_coordinator.gossip.beats import BeatAnswer
from thinwire_coordinator.gossip.gossip import Gossip
from thinwire_coordinator.gossip.ledger_rows import Deposited
from thinwire_coordinator.hall.hall import open_hall
from thinwire_coordinator.hall.ledger.state_directory import is_state, open_state
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.hall.workers import Workers
from thinwire_proto.contract import Contract
from thinwire_proto.gossip.chain import GENESIS
from thinwire_proto.gossip.report_wire import report_of, sign_report
from thinwire_proto.gossip.reports import SignedReport
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb


@dataclass
class ReportingNode:
    """A node without a process. number: of its newest report. amendments: those that it has. is_old: it takes none."""

    key: SecretKey
    member: Member
    topology: int = 0
    iteration: int = 0
    number: int = 0
    trained_through: int | None = None
    samples: int = 0
    compute_ms: int = 0
    head: bytes = GENESIS
    amendments: int = 0
    is_old: bool = False

    @property
    def node_id(self) -> str:
        return self.member.node_id

    def report(self) -> SignedReport:
        self.number += 1
        session = bytes.fromhex(self.member.session)
        request = pb.BeatRequest(
            topology=self.topology,
            iteration=self.iteration,
            head=self.head,
            samples=self.samples,
            compute_ms=self.compute_ms,
            trained_through=self.trained_through,
        )
        sign_report(request, self.number, self.key, session)
        return SignedReport(self.node_id, session, self.number, report_of(request), request.signature)

    def body(self, parameters: int) -> bytes:
        """Parameters that belong to this node alone."""
        seed = int.from_bytes(self.key.public.fingerprint[:4], "big")
        return torch.randn(parameters, generator=torch.Generator().manual_seed(seed)).numpy().tobytes()

    def claim(self, contract: Contract, body: bytes) -> Deposited:
        found = hashlib.sha256(body).digest()
        signature = self.key.sign(statements.deposit(contract.hash, self.iteration, self.head, found))
        return Deposited(self.node_id, self.iteration, self.head, found, signature)


@dataclass
class GossipCoordinator:
    run: Gossip
    nodes: list[ReportingNode] = field(default_factory=list)

    def join(self, count: int) -> list[ReportingNode]:
        made: list[ReportingNode] = []
        for _ in range(count):
            key = SecretKey()
            joined = self.run.members.join(key.public, f"node {len(self.nodes) + len(made)}")
            assert joined is not None
            made.append(ReportingNode(key, joined[0]))
        self.nodes += made
        return made

    def again(self, node: ReportingNode) -> None:
        """A new session of a node, as after a restart."""
        joined = self.run.members.join(node.key.public, "again")
        assert joined is not None
        node.member, node.number = joined[0], 0

    async def beat(self, *nodes: ReportingNode) -> list[BeatAnswer]:
        """These nodes, or all, report at once."""
        reporting = nodes or self.nodes
        beat = self.run.beats.beat
        answers = await asyncio.gather(
            *(beat(node.member, node.report(), b"", amendments=node.amendments) for node in reporting)
        )
        for node, answer in zip(reporting, answers, strict=True):
            node.topology = max(node.topology, answer.assignment.topology if answer.assignment else 0)
            node.amendments += 0 if node.is_old else len(answer.amendments)
        return answers

    async def deposit(self, node: ReportingNode, parts: AsyncIterator[bytes] | None = None) -> str:
        body = node.body(self.run.view.layout.parameters)
        claim = node.claim(self.run.view.contract, body)
        return await self.run.deposits.take(node.member, claim, len(body), parts or _whole(body))


@contextmanager
def gossip_coordinator(folder: Path, contract: Contract) -> Iterator[GossipCoordinator]:
    """To be entered on the event loop. A folder that has a run goes on with it."""
    workers = Workers()
    state = open_state(folder) if is_state(folder) else make_state(folder, contract)
    replica = state.load_snapshot(0)
    run = Gossip(open_hall(state, replica, workers))
    try:
        yield GossipCoordinator(run)
    finally:
        run.stop()
        workers.close()
        state.close()


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    yield body
