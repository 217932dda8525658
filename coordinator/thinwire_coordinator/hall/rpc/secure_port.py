"""TLS of the gRPC port, and who may use it without."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc

from thinwire_common.serving.credentials import following
from thinwire_coordinator.hall.access.transport import Certificates, Transport
from thinwire_coordinator.hall.rpc.calls import host_of

Handler = Any
"""grpc.RpcMethodHandler, whose fields depend on the kind of call."""


def credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Credentials that follow the current certificate."""
    return following(lambda: certificates.current)


class PlainPeers(grpc.aio.ServerInterceptor):
    """Refuses calls in plain text from anywhere but this machine and the proxy that terminates TLS."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        if not self._transport.behind_proxy or handler is None:
            return handler
        return _guarded(handler, self._transport)


def _guarded(handler: Handler, transport: Transport) -> Handler:
    """The handler, which first looks where the call comes from."""

    async def check(context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if not transport.may_connect(host_of(context.peer())):
            text = "this port is for the proxy in front of the coordinator: connect to the proxy"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)

    async def unary(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await check(context)
        return await (handler.unary_unary or handler.stream_unary)(request, context)

    async def stream(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await check(context)
        messages = (handler.unary_stream or handler.stream_stream)(request, context)
        if inspect.isawaitable(messages):
            await messages  # it writes to the context by itself
            return
        async with aclosing(messages):
            async for message in messages:
                yield message

    makers: dict[tuple[bool, bool], tuple[Callable[..., Handler], Any]] = {
        (False, False): (grpc.unary_unary_rpc_method_handler, unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, stream),
    }
    make, behavior = makers[handler.request_streaming, handler.response_streaming]
    return make(behavior, handler.request_deserializer, handler.response_serializer)
