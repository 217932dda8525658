"""Replies that are no messages end a session with an error of thinwire's own, and without a traceback in the log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from support.clocks import CLOCKS
from support.http2_client import ACK, END_HEADERS, END_STREAM, HEAD_BYTES, HEADERS, PREFACE, SETTINGS, frame
from thinwire_common.traffic import Traffic
from thinwire_node.exchange.coordinator.link import Link
from thinwire_node.exchange.coordinator.traffic import CountedChannel
from thinwire_node.exchange.port import LinkLost
from thinwire_proto.wire.service_pb2_grpc import SwarmStub


class Junk(grpc.GenericRpcHandler):
    """Answers every call with bytes that are no message."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def answer(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            yield b"\xff\xff"

        return grpc.stream_stream_rpc_method_handler(answer)


def link_to(port: int) -> Link:
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    stub: Any = SwarmStub(CountedChannel(channel, Traffic()))  # type: ignore[call-overload]
    return Link(stub, channel.close, CLOCKS)


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Junk(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    found = link_to(port)
    yield found
    await found.close()
    await server.stop(0)


@contextlib.asynccontextmanager
async def proxy_without_coordinator(status: int) -> AsyncIterator[int]:
    """A port where every call is answered with a status of HTTP."""
    served = list[asyncio.StreamWriter]()
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readexactly(len(PREFACE))
            writer.write(frame(SETTINGS, 0, 0))
            while True:
                head = await reader.readexactly(HEAD_BYTES)
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
                if kind == SETTINGS and not flags & ACK:
                    writer.write(frame(SETTINGS, ACK, 0))
                if kind == HEADERS:
                    writer.write(frame(HEADERS, END_HEADERS | END_STREAM, stream, b"\0\7:status\3%d" % status))
        ended.set()

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield proxy.sockets[0].getsockname()[1]
    finally:
        proxy.close()
        for writer in served:
            writer.close()
            await writer.wait_closed()
            await ended.wait()
        await proxy.wait_closed()


@pytest.mark.parametrize("status", [401, 403, 404, 500, 502])
async def test_a_proxy_whose_coordinator_is_away_does_not_refuse(status: int) -> None:
    """Of 401, 403 and 404, gRPC makes codes with which a coordinator refuses, and a refusal ends the node."""
    async with proxy_without_coordinator(status) as port:
        link = link_to(port)
        for call in (link.probe(), anext(link.announcements())):
            with pytest.raises(LinkLost, match=f"^a proxy answers in place of the coordinator: HTTP {status}$"):
                await call
        await link.close()
