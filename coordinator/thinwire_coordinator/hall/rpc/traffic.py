"""Counts all bytes of the coordinator's gRPC port, where gRPC parses and serializes messages (docs/watching.md).

`service` counts the bytes of each single node, because only there the node is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from thinwire_common.traffic import Traffic, kinds_of
from thinwire_proto.wire.service_pb2 import DESCRIPTOR

SERVICE = DESCRIPTOR.services_by_name["Swarm"].full_name

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Find: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"


class CountMessages(grpc.aio.ServerInterceptor):
    """Counts every message of every call."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._counted: dict[str, Handler] = {}  # by method; bounded by the number of methods served

    async def intercept_service(self, continuation: Find, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        if method not in self._counted:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None  # there is no such method
            self._counted[method] = self._count(handler, *kinds_of(method))
        return self._counted[method]

    def _count(self, handler: Handler, asked: str, answered: str) -> Handler:
        parse, serialize = handler.request_deserializer, handler.response_serializer
        assert parse is not None
        assert serialize is not None

        sent, received = self._traffic.sent, self._traffic.received

        def counted_parse(data: bytes) -> Any:
            received.add(asked, len(data))
            return parse(data)

        def counted_serialize(message: Any) -> bytes:
            data = serialize(message)
            sent.add(answered, len(data))
            return data

        makers: dict[tuple[bool, bool], tuple[Callable[..., Any], Any]] = {
            (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
        }
        make, behavior = makers[handler.request_streaming, handler.response_streaming]
        counted: Handler = make(behavior, counted_parse, counted_serialize)
        return counted
