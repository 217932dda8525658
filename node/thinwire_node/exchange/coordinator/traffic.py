"""Counts the messages and bytes of a gRPC channel, and limits how often a node takes those of a stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from thinwire_common.traffic import Traffic, kinds_of

if TYPE_CHECKING:
    import grpc
import asyncio
import contextlib

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


AT_ONCE, MESSAGES_PER_S, EARNED = 100, 25.0, 4
"""Messages of a stream that a node takes at once, and lastingly a second, and more for each contribution of its own. A
round has a few."""


class Pace:
    """Limits how often a stream's messages are taken. The rest waits in the connection, which is bounded.

    A coordinator may announce the same round again and again, and each announcement makes the node decide anew. Those
    that come with the node's own progress are not held back, however short the rounds are."""

    def __init__(self) -> None:
        self._left, self._at = float(AT_ONCE), asyncio.get_running_loop().time()
        self._earned = asyncio.Event()

    def earn(self) -> None:
        """Make room for the messages that follow a contribution of trained samples."""
        self._refill(EARNED)
        self._earned.set()

    async def wait(self) -> None:
        """Wait until the next message may be taken."""
        self._refill(-1)
        while self._left < 0:
            self._earned.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._earned.wait(), -self._left / MESSAGES_PER_S)
            self._refill(0)

    def _refill(self, more: int) -> None:
        now = asyncio.get_running_loop().time()
        self._left = min(AT_ONCE, self._left + (now - self._at) * MESSAGES_PER_S + more)
        self._at = now
