"""Joins a swarm with bare gRPC calls, for benchmarks whose nodes are no nodes."""

from __future__ import annotations

import os
from typing import Any

from thinwire_coordinator.hall.access.door import Candidate, Denied
from thinwire_node.exchange.coordinator.dial import NONCE_BYTES, check_coordinator, prove
from thinwire_proto.identity.invite import Invite
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import SESSION
from thinwire_proto.wire.negotiation import PROTOCOL

JOIN_S = 60.0
Metadata = tuple[tuple[str, str], ...]


async def join(stub: Any, key: SecretKey, invite: Invite | None, name: str = "") -> tuple[pb.JoinReply, Metadata]:
    """The reply to Join, and the metadata of the session's calls."""
    nonce = os.urandom(NONCE_BYTES)
    greeting = await stub.Hello(pb.HelloRequest(nonce=nonce), timeout=JOIN_S)
    check_coordinator(invite, nonce, greeting)
    proof = prove(key, invite.token if invite else b"", greeting)
    reply = await stub.Join(pb.JoinRequest(protocol=PROTOCOL, name=name, **proof), timeout=JOIN_S)
    return reply, ((SESSION, reply.session),)


class Everybody:
    """Admits all, with or without an invite, and enrols nobody, so that a thousand nodes write nothing to disk."""

    def admit(self, candidate: Candidate, now: float) -> Denied | None:
        return None

    def would_admit(self, candidate: Candidate, now: float) -> Denied | None:
        return None

    def joined(self, candidate: Candidate, now: float) -> None:
        pass
