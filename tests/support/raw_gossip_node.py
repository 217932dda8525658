"""A node of a gossip run made of bare gRPC calls, so that a test can send any report."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from support.raw_calls import in_session, join
from support.real import RealSwarm
from thinwire_proto.contract import parse_contract
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.report_wire import sign_report
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import PART_BYTES_MAX
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

CALL_S = 20.0


class RawGossipNode:
    """Joins on construction, with the swarm's invite. iteration, head: what its next report says."""

    def __init__(self, swarm: RealSwarm, key: SecretKey | None = None) -> None:
        self._swarm = swarm
        self.key = key or SecretKey()
        self.iteration = 0
        self.topology = 0
        self.lease: list[pb.SampleRange] = []
        self.assignment: pb.Assignment | None = None
        self.join()

    def join(self) -> None:
        self.channel = self._swarm.channel()
        joined = join(SwarmStub(self.channel), self.key, self._swarm.token)
        self.contract = parse_contract(joined.contract)
        self.secret = joined.session
        self.session = statements.session_of(joined.session)
        self.stub = in_session(self.channel, joined.session)
        self.number = 0

    @property
    def head(self) -> bytes:
        return hashlib.sha256(b"%d" % self.iteration).digest()

    @property
    def parameters(self) -> int:
        return TileLayout(self.contract.parameters).parameters

    def request(self, **fields: Any) -> pb.BeatRequest:
        """A signed report; `fields` are set before it is signed."""
        right: dict[str, Any] = {"topology": self.topology, "iteration": self.iteration, "head": self.head}
        request = pb.BeatRequest(**(right | fields))
        sign_report(request, self.number + 1, self.key, self.session)
        return request

    def send(self, request: pb.BeatRequest) -> pb.BeatReply:
        reply: pb.BeatReply = self.stub.Beat(request, timeout=CALL_S)
        self.number = request.number
        self.lease = list(reply.lease)
        if reply.HasField("assignment"):
            self.assignment, self.topology = reply.assignment, reply.assignment.topology
        return reply

    def beat(self, **fields: Any) -> pb.BeatReply:
        return self.send(self.request(**fields))

    def train(self, iterations: int = 1, **fields: Any) -> pb.BeatReply:
        """Do iterations on the lease, and report them."""
        rule = self.contract.rule
        assert isinstance(rule, OwnStepsSpec)
        samples = iterations * rule.samples
        positions = [run.start + place for run in self.lease for place in range(run.count)][:samples]
        self.iteration += iterations
        trained = {"samples": len(positions), "trained_through": positions[-1] if positions else None, "loss": 2.5}
        return self.beat(**(trained | fields))

    def x(self) -> npt.NDArray[np.float32]:
        """Parameters that belong to this node alone."""
        seed = int.from_bytes(self.key.public.fingerprint[:4], "big")
        return np.random.default_rng(seed).normal(0, 0.02, self.parameters).astype("<f4")

    def header(self, body: bytes, **fields: Any) -> pb.DepositHeader:
        found = hashlib.sha256(body).digest()
        statement = statements.deposit(self.contract.hash, self.iteration, self.head, found)
        right: dict[str, Any] = {"iteration": self.iteration, "head": self.head, "body_bytes": len(body), "hash": found}
        return pb.DepositHeader(**(right | {"signature": self.key.sign(statement)} | fields))

    def deposit(self, body: bytes | None = None, **fields: Any) -> str:
        """Send parameters. Returns why they are refused."""
        body = self.x().tobytes() if body is None else body
        parts = [pb.DepositPart(header=self.header(body, **fields))]
        parts += [
            pb.DepositPart(data=body[start : start + PART_BYTES_MAX]) for start in range(0, len(body), PART_BYTES_MAX)
        ]
        reply: pb.DepositReply = self.stub.Deposit(iter(parts), timeout=CALL_S)
        return reply.refused
