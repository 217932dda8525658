"""Refuses messages that are not protobuf: INVALID_ARGUMENT, and no line in the log.

gRPC takes an error of the parser for a bug of the service: it answers UNKNOWN with the exception's text, and logs a
traceback. Strangers could fill the log with these. So a message that cannot be read becomes UNREADABLE, and the call is
refused where the service would receive it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from inspect import isasyncgenfunction
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

UNREADABLE: Final = object()
TEXT = "this message cannot be read: it is not what this call takes"


def refuse_unreadable(handler: Handler) -> Handler:
    """A handler that refuses what the parser of `handler` cannot read."""
    parse = handler.request_deserializer
    assert parse is not None

    def parse_or_mark(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return UNREADABLE

    makers: dict[tuple[bool, bool], tuple[Callable[..., Any], Callable[[Any], Any], Any]] = {
        (False, False): (grpc.unary_unary_rpc_method_handler, _one_to_one, handler.unary_unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, _one_to_many, handler.unary_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, _many_to_one, handler.stream_unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, _many_to_many, handler.stream_stream),
    }
    make, wrap, behavior = makers[handler.request_streaming, handler.response_streaming]
    found: Handler = make(wrap(behavior), parse_or_mark, handler.response_serializer)
    return found


def _one_to_one(behavior: Callable[[Any, Context], Awaitable[Any]]) -> Any:
    async def answer(request: Any, context: Context) -> Any:
        if request is UNREADABLE:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, TEXT)
        return await behavior(request, context)

    return answer


def _one_to_many(behavior: Callable[[Any, Context], Any]) -> Any:
    async def answer_by_writing(request: Any, context: Context) -> Any:
        if request is UNREADABLE:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, TEXT)
        return await behavior(request, context)

    async def answer(request: Any, context: Context) -> AsyncIterator[Any]:
        if request is UNREADABLE:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, TEXT)
        async for message in behavior(request, context):
            yield message

    return answer if isasyncgenfunction(behavior) else answer_by_writing  # gRPC's health service writes


def _many_to_one(behavior: Callable[[AsyncIterator[Any], Context], Awaitable[Any]]) -> Any:
    async def answer(requests: AsyncIterator[Any], context: Context) -> Any:
        return await behavior(_readable(requests, context), context)

    return answer


def _many_to_many(behavior: Callable[[AsyncIterator[Any], Context], Any]) -> Any:
    if not isasyncgenfunction(behavior):
        return _many_to_one(behavior)

    async def answer(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for message in behavior(_readable(requests, context), context):
            yield message

    return answer


async def _readable(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
    async for request in requests:
        if request is UNREADABLE:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, TEXT)
        yield request
