"""Requests the status of a swarm from its coordinator."""

from __future__ import annotations

import grpc

from thinwire_proto import limits
from thinwire_proto.errors import RemoteError
from thinwire_proto.wire.parts import MESSAGE_BYTES_MAX
from thinwire_proto.wire.service_pb2 import StatusReply, StatusRequest
from thinwire_proto.wire.service_pb2_grpc import SwarmStub


def ask_status(address: str) -> StatusReply:
    """The status of the swarm at `address` (HOST:PORT). Raises RemoteError if no coordinator answers."""
    with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)]) as channel:
        try:
            return SwarmStub(channel).Status(StatusRequest(), timeout=limits.STATUS_ANSWER_S)
        except grpc.RpcError as error:
            raise RemoteError(f"{address}: {_in_words(error)}") from None


def _in_words(error: grpc.RpcError) -> str:
    code = error.code() if isinstance(error, grpc.Call) else None
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "the server at this address is not a thinwire coordinator"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {limits.STATUS_ANSWER_S:.0f} s"
    return "no coordinator answers; a coordinator that still replays its ledger does not answer yet"
