"""Joins a swarm with bare gRPC calls, so that a test can send any message."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import grpc

from thinwire_node.exchange.coordinator.dial import NONCE_BYTES, prove
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import SESSION
from thinwire_proto.wire.negotiation import PROTOCOL
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

CALL_S = 10.0


def hello(stub: SwarmStub) -> pb.HelloReply:
    return stub.Hello(pb.HelloRequest(nonce=os.urandom(NONCE_BYTES)), timeout=CALL_S)


def join(stub: SwarmStub, key: SecretKey, token: bytes = b"", **fields: Any) -> pb.JoinReply:
    """Join with the key's proof. `fields` replace those of a right request."""
    request: dict[str, Any] = {"protocol": PROTOCOL, "name": "raw", **prove(key, token, hello(stub))}
    return stub.Join(pb.JoinRequest(**(request | fields)), timeout=CALL_S)


def in_session(channel: grpc.Channel, secret: str) -> Any:
    """A stub whose calls carry a session's secret."""
    return _InSession(SwarmStub(channel), ((SESSION, secret),))


class _InSession:
    def __init__(self, stub: SwarmStub, metadata: tuple[tuple[str, str], ...]) -> None:
        self._stub, self._metadata = stub, metadata

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self._stub, name), metadata=self._metadata)
