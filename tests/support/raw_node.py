"""A node made of bare gRPC calls, so that a test can send any message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from support.raw_calls import in_session, join
from support.real import RealSwarm
from support.small import random_votes
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.exact.replica import Replica, load_replica
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.codec import encode_votes
from thinwire_proto.wire.rows import contribution_hash
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

ROUND = pb.Announcement.STATE_ROUND


class RawNode:
    """Joins on construction, with the swarm's invite, and fetches the replica."""

    def __init__(self, swarm: RealSwarm, key: SecretKey | None = None) -> None:
        self._swarm = swarm
        self.channel = swarm.channel()
        self.key = key or SecretKey()
        joined = self.join()
        self.secret = joined.session
        self.stub = in_session(self.channel, joined.session)
        self.contract: Contract = parse_contract(joined.contract)
        (swarm.folder / "raw").write_bytes(b"".join(part.data for part in self.stub.Snapshot(pb.SnapshotRequest())))
        self.replica: Replica = load_replica(self.contract, swarm.folder / "raw")

    def join(self, **fields: Any) -> pb.JoinReply:
        return join(SwarmStub(self.channel), self.key, self._swarm.token, **fields)

    def attend(self) -> Iterator[pb.Announcement]:
        return iter(self.stub.Attend(pb.AttendRequest()))

    def header(self, announcement: pb.Announcement, **fields: object) -> pb.ContributionHeader:
        right = {
            "term": announcement.term,
            "round": announcement.round,
            "step": announcement.step,
            "base_step": announcement.step,
            "fingerprint": self.replica.fingerprint(announcement.nonces[0]) if announcement.nonces else 0,
            "samples": sum(run.count for run in announcement.lease),
            "trained_through": max((run.start + run.count - 1 for run in announcement.lease), default=None),
        }
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

    def contribute(self, announcement: pb.Announcement, payload: bytes, **fields: object) -> pb.Receipt:
        """Send a contribution. It is signed as it is sent, if `fields` do not have another signature."""
        header = self.header(announcement, **({"payload_bytes": len(payload)} | fields))
        if "signature" not in fields:
            name = self.name(announcement, payload, term=header.term, round_number=header.round)
            header.signature = self.key.sign(statements.contribution(name, header.samples))
        receipt: pb.Receipt = self.stub.Contribute(iter([pb.ContributionPart(header=header, data=payload)]), timeout=30)
        return receipt

    def good_payload(self) -> bytes:
        """A contribution that the coordinator counts."""
        return encode_votes(random_votes(self.replica.layout, 32, 1), self.replica.layout)


def opened(announcements: Iterator[pb.Announcement]) -> pb.Announcement:
    """The next announcement of an open round."""
    return next(announcement for announcement in announcements if announcement.state == ROUND)
