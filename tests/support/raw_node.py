"""Nodes made of bare gRPC calls, so that a test can send any message."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import grpc

from support.raw_calls import in_session, join
from support.real import RealSwarm
from support.small import random_votes
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.exact.replica import Replica, load_replica
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.codec import decode_update, encode_votes
from thinwire_proto.wire.rows import Row, contribution_hash, parse_row
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

ROUND = pb.Announcement.STATE_ROUND


class JoinedNode:
    """Joins on construction. stub: its calls carry the session's secret."""

    def __init__(self, channel: grpc.Channel, token: bytes, key: SecretKey | None = None) -> None:
        self.channel, self.token = channel, token
        self.key = key or SecretKey()
        joined = self.join()
        self.secret = joined.session
        self.stub = in_session(self.channel, joined.session)
        self.contract: Contract = parse_contract(joined.contract)

    def join(self, **fields: Any) -> pb.JoinReply:
        return join(SwarmStub(self.channel), self.key, self.token, **fields)

    @cached_property
    def replica(self) -> Replica:
        """Fetched when it is first needed; `follow` applies updates to it."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snapshot"
            path.write_bytes(b"".join(part.data for part in self.stub.Snapshot(pb.SnapshotRequest())))
            return load_replica(self.contract, path)

    @cached_property
    def _updates(self) -> Any:
        return self.stub.Updates(pb.UpdatesRequest(from_step=self.replica.step))

    def follow(self, step: int) -> None:
        """Wait for the updates up to a step, and apply them."""
        row: Row | None = None
        body = b""
        while self.replica.step < step:
            part = next(self._updates)
            row, body = row or parse_row(part.row), body + part.data
            if len(body) == row.body_bytes:
                update = decode_update(body, self.replica.layout, self.contract.demo.magnitude)
                self.replica.apply(update, row.hash)
                row, body = None, b""

    def attend(self) -> Iterator[pb.Announcement]:
        return iter(self.stub.Attend(pb.AttendRequest()))

    def header(self, announcement: pb.Announcement, **fields: object) -> pb.ContributionHeader:
        right = {
            "term": announcement.term,
            "round": announcement.round,
            "step": announcement.step,
            "base_step": announcement.step,
            "samples": sum(run.count for run in announcement.lease),
            "trained_through": max((run.start + run.count - 1 for run in announcement.lease), default=None),
        }
        if "fingerprint" not in fields and announcement.nonces:
            right["fingerprint"] = self.replica.fingerprint(announcement.nonces[0])
        return pb.ContributionHeader(**(right | fields))  # type: ignore[arg-type]

    def name(self, announcement: pb.Announcement, payload: bytes, **fields: Any) -> bytes:
        """The hash of a contribution. `fields` replace what the hash covers."""
        what: dict[str, Any] = {
            "contract_hash": self.contract.hash,
            "term": announcement.term,
            "round_number": announcement.round,
            "node": self.key.public.node_id,
        }
        return contribution_hash(**(what | fields), payload=payload)

    def part(self, announcement: pb.Announcement, payload: bytes, **fields: object) -> pb.ContributionPart:
        """A whole contribution. It is signed as it is sent, if `fields` do not have another signature."""
        header = self.header(announcement, **({"payload_bytes": len(payload)} | fields))
        if "signature" not in fields:
            name = self.name(announcement, payload, term=header.term, round_number=header.round)
            header.signature = self.key.sign(statements.contribution(name, header.samples))
        return pb.ContributionPart(header=header, data=payload)

    def contribute(self, announcement: pb.Announcement, payload: bytes, **fields: object) -> pb.Receipt:
        part = self.part(announcement, payload, **fields)
        receipt: pb.Receipt = self.stub.Contribute(iter([part]), timeout=30)
        return receipt

    def good_payload(self) -> bytes:
        """A contribution that the coordinator counts."""
        return encode_votes(random_votes(self.replica.layout, 32, 1), self.replica.layout)


class RawNode(JoinedNode):
    """A node of a test's swarm, which joins with its invite."""

    def __init__(self, swarm: RealSwarm, key: SecretKey | None = None) -> None:
        self.swarm = swarm
        super().__init__(swarm.channel(), swarm.token, key)


def opened(announcements: Iterator[pb.Announcement]) -> pb.Announcement:
    """The next announcement of an open round."""
    return next(announcement for announcement in announcements if announcement.state == ROUND)
