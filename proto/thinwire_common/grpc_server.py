"""A gRPC server that no path of a call can end, and its TLS credentials, which are renewed while it runs.

The problem: the server of grpc.aio (up to 1.85 at least) decodes the path of a call to a method that nobody registered
as UTF-8, in the loop that accepts all calls. So one call with the path `/\\xff`, which anybody can send, ended the
loop, and with it the server and every connection. An interceptor comes too late, gRPC's core has no option against it,
and starting the server again would still cost every node its connection.

The sketch: the loop waits for the next call to each registered method, and for the next call to any other. This class
answers the latter by itself, UNIMPLEMENTED, without ever reading the path. The loop gets calls to registered methods
alone. All of it stands on names that gRPC does not promise; a test sends the path, and fails if they change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server

from thinwire_proto.identity.certificates import Certificate

UNREGISTERED: Final = "an unregistered method"
LOG = logging.getLogger("grpc._cython.cygrpc")
OF_PEERS = ("ExecuteBatchError raised in core", "Aborting method", "Invalid encoding on")
"""Lines of gRPC's log that any stranger can cause, and that are left out: the other end went away in the middle of a
stream, or sent metadata that are no text; or this end stops."""


def path_safe_server(
    options: Sequence[tuple[str, Any]] = (),
    maximum_concurrent_rpcs: int | None = None,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
) -> grpc.aio.Server:
    """`grpc.aio.server`, without handlers for methods that are not registered."""
    LOG.addFilter(_is_not_of_peers)  # a second call changes nothing
    return cast(grpc.aio.Server, _Server(options, maximum_concurrent_rpcs, interceptors))


def _is_not_of_peers(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(OF_PEERS)


class _Server(_server.Server):
    def __init__(self, options: Any, maximum_concurrent_rpcs: int | None, interceptors: Any) -> None:
        self._loop = cygrpc.get_working_loop()
        self._server = _Calls(self._loop, None, (), tuple(interceptors), tuple(options), maximum_concurrent_rpcs)


class _Calls(cygrpc.AioServer):  # type: ignore[misc]
    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        """The next call to a registered method; for None, a future without a result: see the module."""
        if method is not None:
            found: asyncio.Future[Any] = super()._make_request_call_future(method)
            return found
        return asyncio.get_running_loop().create_task(self._refuse_unregistered())

    async def _refuse_unregistered(self) -> None:
        loop, nobody, refusing = asyncio.get_running_loop(), cygrpc._MethodResolver([], {}), set[asyncio.Task[None]]()
        while True:
            call = await self._request_call()
            refusal = cygrpc._handle_rpc(UNREGISTERED, nobody, (), call, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(refusal, call, loop, UNREGISTERED))
            refusing.add(task)
            task.add_done_callback(refusing.discard)


def following(current: Callable[[], Certificate]) -> grpc.ServerCredentials:
    """Credentials that follow the current certificate. gRPC asks at each handshake, in a thread of its own."""
    served = [current()]

    def changed() -> Any:
        if (newest := current()) == served[0]:
            return None  # keep the one in use
        served[0] = newest
        return _configuration(newest)

    return grpc.dynamic_ssl_server_credentials(_configuration(served[0]), changed)


def _configuration(certificate: Certificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(certificate.key, certificate.chain)])
