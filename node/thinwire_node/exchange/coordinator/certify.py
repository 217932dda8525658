"""Asks a coordinator what it has counted of a node."""

from __future__ import annotations

import grpc

from thinwire_node.exchange.coordinator.dial import dial
from thinwire_node.exchange.port import LinkLost
from thinwire_proto import limits
from thinwire_proto.errors import RemoteError
from thinwire_proto.identity.contribution_certificate import ContributionCertificate, read_certificate
from thinwire_proto.identity.invite import Invite
from thinwire_proto.wire.service_pb2 import StatusRequest
from thinwire_proto.wire.service_pb2_grpc import SwarmStub


async def ask_certificate(address: str, invite: Invite | None, node: str) -> ContributionCertificate:
    """The certificate of the node with this id; its signature is not checked. address, invite: see `dial`.

    Raises RemoteError if the coordinator does not answer, or nothing is counted; ConfigError."""
    try:
        dialled = await dial(address, invite, ())
        async with dialled.channel as channel:
            reply = await SwarmStub(channel).Status(StatusRequest(certify=node), timeout=limits.STATUS_ANSWER_S)
    except (LinkLost, grpc.RpcError) as error:
        words = (error.details() if isinstance(error, grpc.RpcError) else str(error)) or "the coordinator fell silent"
        raise RemoteError(f"{address}: {words}; try again later") from None
    if not reply.certificate:
        raise RemoteError(f"{address}: nothing of node {node[:8]} is counted yet, or the ledger is still being read")
    return read_certificate(reply.certificate)
