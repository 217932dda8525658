"""The proofs before a node joins: who the coordinator is, and who the node is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from thinwire_node.exchange.port import Refused
from thinwire_proto.identity import statements
from thinwire_proto.identity.invite import Invite
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.wire import service_pb2 as pb

NONCE_BYTES = 32


class Proof(TypedDict):
    """The fields of JoinRequest and ExamineRequest that prove a node's identity."""

    public_key: bytes
    token: bytes
    challenge: bytes
    signature: bytes


def check_coordinator(invite: Invite | None, nonce: bytes, reply: pb.HelloReply) -> PublicKey:
    """The key of the coordinator that answered `nonce`. Raises Refused if it proves nothing, or another one is invited
    to."""
    key = PublicKey(reply.public_key)
    if invite is not None and key.fingerprint != invite.fingerprint:
        raise Refused(
            f"the coordinator at {invite.address} is not the one that the invite names; ask the organizer whether they "
            "have a new one, and for a new invite"
        )
    if not key.verifies(reply.signature, statements.hello(nonce, reply.challenge)):
        raise Refused("the coordinator did not prove that it holds the key that it shows")
    return key


def prove(
    key: SecretKey,
    token: bytes,
    reply: pb.HelloReply,
    purpose: Callable[[bytes, bytes, bytes], bytes] = statements.join,
) -> Proof:
    """Answer the coordinator's challenge. token: of the invite; empty without one. purpose: makes the statement."""
    statement = purpose(reply.public_key, reply.challenge, token)
    return {
        "public_key": key.public.data,
        "token": token,
        "challenge": reply.challenge,
        "signature": key.sign(statement),
    }
