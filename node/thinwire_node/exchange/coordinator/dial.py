"""From an invite to a gRPC channel that trusts only the coordinator which the invite names, and the proofs before a
node joins: who the coordinator is, and who the node is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TypedDict

import grpc

from thinwire_common.reach.errors import Unreachable
from thinwire_common.reach.grpc_target import NO_PROXY, Options, grpc_target
from thinwire_common.reach.hosts import is_loopback, split_address
from thinwire_common.reach.preflight import Way, find_way
from thinwire_node.exchange.port import LinkLost, Refused
from thinwire_node.limits.throttle import Throttle, relayed
from thinwire_proto.errors import ConfigError, UsageError
from thinwire_proto.identity import statements
from thinwire_proto.identity.invite import Invite
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.wire import service_pb2 as pb


@dataclass(frozen=True)
class Dialled:
    """An open channel. port: of the TCP connection's other end, which may be a proxy's. relay: closes what the channel
    leads through."""

    channel: grpc.aio.Channel
    port: int
    relay: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def close(self) -> None:
        await self.channel.close()
        await self.relay.aclose()


async def dial(address: str, invite: Invite | None, options: Options, throttle: Throttle | None = None) -> Dialled:
    """Open a channel to a coordinator. throttle: paces it, if the owner limits the traffic.

    address: HOST:PORT, of this machine, if there is no invite; the channel then speaks plain text. Raises LinkLost if
    the coordinator cannot be reached, or if somebody else answers; ConfigError if trying again would be in vain."""
    if invite is None:
        host, port = split_address(address)
        if not is_loopback(host):
            raise ConfigError(
                f"{address} is another machine: to join it, start the node with an invite, which its organizer prints "
                "with `thinwire-coordinator invite`; HOST:PORT alone is for a coordinator on this machine"
            )
        await _check_plain(address, host, port)
        relay, target, more = await relayed(throttle, Way(("127.0.0.1", port), None, "", None), address, NO_PROXY)
        return Dialled(grpc.aio.insecure_channel(target, options=[*options, *more]), port, relay)
    host, port = split_address(invite.address)
    try:
        way = await find_way(host, port, invite.fingerprint, public_tls=invite.public_tls)
    except Unreachable as error:
        raise LinkLost(str(error)) from None
    credentials = grpc.ssl_channel_credentials(way.roots)
    target, more = grpc_target(way, invite.address, public_tls=invite.public_tls)
    relay, target, more = await relayed(throttle, way, target, more)
    return Dialled(grpc.aio.secure_channel(target, credentials, options=[*options, *more]), way.peer[1], relay)


async def _check_plain(address: str, host: str, port: int) -> None:
    """Raise UsageError if a coordinator on this machine speaks TLS: it does so until it is started with another option.
    gRPC would say only that the connection closed."""
    try:
        await find_way(host, port, None, public_tls=False)
    except Unreachable:
        return  # plain text, or nobody, which gRPC finds out
    raise UsageError(
        f"the coordinator at {address} encrypts, and admits by invite: start the node with an invite, which "
        "`thinwire-coordinator invite` prints; or start the coordinator with --insecure, for this machine alone"
    )


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
