"""Counts the messages and bytes of a gRPC channel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from thinwire_common.traffic import Traffic, kinds_of

if TYPE_CHECKING:
    import grpc

Serialize = Callable[[Any], bytes]
Parse = Callable[[bytes], Any]
KINDS_OF_METHODS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")

UNREADABLE: Final = object()
"""In place of a message that is not protobuf. gRPC would log a traceback, and return None."""


class CountedChannel:
    """Wraps a channel and counts each message when it is serialized or parsed. Has only the methods that a stub
    needs."""

    def __init__(self, channel: grpc.aio.Channel, traffic: Traffic) -> None:
        self._channel = channel
        self._traffic = traffic
        for kind in KINDS_OF_METHODS:
            setattr(self, kind, partial(self._call, kind))

    def _call(
        self, kind: str, method: str, request_serializer: Serialize, response_deserializer: Parse, **more: Any
    ) -> Any:
        counting = self._counting(method, request_serializer, response_deserializer)
        return getattr(self._channel, kind)(method, *counting, **more)

    def _counting(self, method: str, serialize: Serialize, parse: Parse) -> tuple[Serialize, Parse]:
        request, response = kinds_of(method)
        sent, received = self._traffic.sent, self._traffic.received

        def counted_serialize(message: Any) -> bytes:
            data = serialize(message)
            sent.add(request, len(data))
            return data

        def counted_parse(data: bytes) -> Any:
            received.add(response, len(data))
            try:
                return parse(data)
            except DecodeError:
                return UNREADABLE

        return counted_serialize, counted_parse
