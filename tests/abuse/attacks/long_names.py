"""Joins under a name of a megabyte, and headers of a megabyte."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import grpc

from abuse.target import Target
from support.raw_calls import CALL_S, join
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

NAME = "\N{SNOWMAN}" * (1_000_000 // 3)


def long_names(target: Target) -> None:
    while not target.stop.is_set():
        with target.channel() as channel:
            stub = SwarmStub(channel)
            _try(target, "names", partial(join, stub, SecretKey(), target.token, name=NAME))
            headers = (("x-name", "n" * 1_000_000),)
            _try(target, "headers", partial(stub.Status, pb.StatusRequest(), metadata=headers, timeout=CALL_S))


def _try(target: Target, what: str, call: Callable[[], object]) -> None:
    try:
        call()
        target.count(f"{what} admitted")
    except grpc.RpcError as error:
        target.count(f"{what} refused: {error.code().name.lower()}")
