"""Reads the coordinator's answers. A failure of gRPC raises LinkLost or Refused, or one of their kinds; bytes that are
no message raise PayloadError."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import grpc

from thinwire_node.exchange.coordinator.traffic import UNREADABLE
from thinwire_node.exchange.port import BeyondTheEnd, LinkLost, Refused, SessionReplaced
from thinwire_proto.clean_text import clean_text
from thinwire_proto.errors import PayloadError, RemoteError
from thinwire_proto.wire.metadata import REASON, REPLACED

Reply = TypeVar("Reply")

LOST = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.NOT_FOUND,  # unknown session: the coordinator has restarted
        grpc.StatusCode.RESOURCE_EXHAUSTED,  # too many calls at once, for now
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
    }
)
HTTP_STATUS = re.compile(r"Received http2 header with status: (\d{3})")
"""gRPC's words for an answer without a status of gRPC: a proxy's, while its coordinator is away. Of 401, 403 and 404,
gRPC makes codes with which a coordinator refuses a call."""


async def reply_of(call: Awaitable[Reply]) -> Reply:
    """The answer to a call. Raises as the module says."""
    try:
        return _readable(await call)
    except grpc.aio.AioRpcError as error:
        raise _plain(error) from None


async def messages_of(call: Any) -> AsyncIterator[Any]:
    """The messages of a call that streams; it is cancelled when its reader stops. Raises as the module says."""
    try:
        async for message in call:
            yield _readable(message)
    except grpc.aio.AioRpcError as error:
        raise _plain(error) from None
    finally:
        call.cancel()
    if call.cancelled():
        raise LinkLost("the call was cancelled")


def _readable(message: Reply) -> Reply:
    """A message. Raises PayloadError if it is none."""
    if message is UNREADABLE:
        raise PayloadError("the coordinator sent bytes that are no message")
    return message


def _plain(error: grpc.aio.AioRpcError) -> RemoteError:
    text = clean_text(error.details() or "") or error.code().name.lower()
    if status := HTTP_STATUS.fullmatch(text):
        return LinkLost(f"a proxy answers in place of the coordinator: HTTP {status[1]}")
    if error.code() == grpc.StatusCode.OUT_OF_RANGE:
        return BeyondTheEnd(text)
    if (REASON, REPLACED) in tuple(error.trailing_metadata() or ()):
        return SessionReplaced(text)
    return LinkLost(text) if error.code() in LOST else Refused(text)
