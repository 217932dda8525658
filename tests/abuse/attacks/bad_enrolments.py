"""10,000 joins whose proof is wrong, whose challenge was never given, or whose token does not exist.

Each connection has as many joins under way as the coordinator allows, so that refusals that come late do not slow it.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from abuse.target import Target
from support.raw_calls import CALL_S, hello
from thinwire_node.exchange.coordinator.handshake import prove
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import REASON
from thinwire_proto.wire.negotiation import PROTOCOL
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

JOINS = 10_000
CONNECTIONS = 24
UNDER_WAY = 32
KINDS = ("proof", "challenge", "token")
NEVER_GIVEN = pb.HelloReply(public_key=bytes(32), challenge=bytes(40))


def bad_enrolments(target: Target) -> None:
    """Without a pause, until JOINS are made or it is stopped."""
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for _ in range(CONNECTIONS):
            pool.submit(_join_badly, target)


def _join_badly(target: Target) -> None:
    key, room = SecretKey(), threading.Semaphore(UNDER_WAY)
    with target.channel() as channel:
        stub, reply = SwarmStub(channel), NEVER_GIVEN
        for number in range(JOINS // CONNECTIONS):
            if target.stop.is_set():
                return
            if number % UNDER_WAY == 0:
                reply = _hello(target, stub) or reply
            kind = KINDS[number % (len(KINDS) if target.token else 2)]  # without invites, every token is as good
            answered = NEVER_GIVEN if kind == "challenge" else reply
            fields: dict[str, Any] = {"protocol": PROTOCOL, **prove(key, os.urandom(16), answered)}
            if kind == "proof":
                fields["signature"] = bytes(64)
            room.acquire()
            target.count("Join")
            joining: Any = stub.Join.future(pb.JoinRequest(**fields), timeout=CALL_S)

            def ended(joining: Any) -> None:
                target.count(f"refused: {_reason(joining)}")
                room.release()

            joining.add_done_callback(ended)
        for _ in range(UNDER_WAY):
            room.acquire()


def _hello(target: Target, stub: SwarmStub) -> pb.HelloReply | None:
    target.count("Hello")
    try:
        return hello(stub)
    except grpc.RpcError as error:
        target.count(f"refused: {_reason(error)}")
        return None


def _reason(refused: Any) -> str:
    if refused.code() == grpc.StatusCode.OK:
        return "not at all"
    reasons = [str(value) for key, value in refused.trailing_metadata() or () if key == REASON]
    return " ".join(reasons) or str(refused.code().name.lower())
