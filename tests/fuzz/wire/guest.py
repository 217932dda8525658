"""A joined node without a replica, which can make and sign a right message of every call."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

import grpc
from google.protobuf.message import Message

from fuzz.right_requests import right_requests
from support.raw_calls import hello, in_session, join
from thinwire_node.exchange.coordinator.dial import prove
from thinwire_proto.contract import parse_contract
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.report_wire import report_of
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.rows import contribution_hash
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

CALLS = {call.name: call for call in pb.DESCRIPTOR.services_by_name["Swarm"].methods}


def kind_of(call: str) -> type[Message]:
    """The class of a call's requests."""
    found: type[Message] = getattr(pb, CALLS[call].input_type.name)
    return found


@lru_cache(maxsize=1)
def _hash_of(contract: bytes) -> bytes:
    return parse_contract(contract).hash


class Guest:
    """Joins on construction. contract: as it was sent. announced: for those who attend, the newest announcement."""

    def __init__(self, channel: grpc.Channel, token: bytes = b"") -> None:
        self.key = SecretKey()
        reply = join(SwarmStub(channel), self.key, token)
        self.challenge, self._token = hello(SwarmStub(channel)), token
        self.secret, self.contract = reply.session, reply.contract
        self.session = statements.session_of(reply.session)
        self.stub = in_session(channel, reply.session)
        self.announced = pb.Announcement()

    def right(self, call: str) -> Message:
        """A message of this call as it should be, as far as it can be without taking part."""
        proof = prove(self.key, self._token, self.challenge)
        return right_requests(self.contract, proof).get(call) or kind_of(call)()

    def signed(self, message: Any) -> Any:
        """Sign a message, unless it has a signature."""
        if isinstance(message, pb.LeaveRequest) and not message.signature:
            through = message.trained_through if message.HasField("trained_through") else None
            message.signature = self.key.sign(statements.leave(self.session, through))
        elif isinstance(message, pb.EvaluatedRequest) and not message.signature:
            part = message.part
            where = (part.step, part.name, part.start, part.count, part.spread)
            message.signature = self.key.sign(statements.evaluated(self.session, *where, message.loss))
        elif isinstance(message, pb.BeatRequest) and not message.signature:
            with suppress(PayloadError):  # of a sketch that nobody can sign
                report = report_of(message).canonical()
                message.signature = self.key.sign(statements.beat(self.session, message.number, report))
        elif isinstance(message, pb.DepositPart) and not message.header.signature:
            given = message.header
            what = statements.deposit(_hash_of(self.contract), given.iteration, given.head, given.hash)
            given.signature = self.key.sign(what)
        elif isinstance(message, pb.ContributionPart) and not message.header.signature:
            header, node = message.header, self.key.public.node_id
            name = contribution_hash(_hash_of(self.contract), header.term, header.round, node, message.data)
            header.signature = self.key.sign(statements.contribution(name, header.samples))
        return message
