"""The fuzzer's own client is right where it means to be right."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from fuzz.wire.calls import headers_of, prefixed
from fuzz.wire.connection import Connection
from fuzz.wire.frames import FRAME_BYTES_MAX, block

METHOD = "/test.Echo/Length"


async def length(request: bytes, context: object) -> bytes:
    return str(len(request)).encode()


async def test_a_call_larger_than_the_first_window_is_answered_among_small_ones() -> None:
    """Its headers once waited with its body, behind those of later streams, so that the server took it for none."""
    server = grpc.aio.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(length)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Length": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    connection = await Connection.open("127.0.0.1", port)
    answers = {}
    for size in (10, 300_000, 10, 200_000, 10):
        message = prefixed(bytes(size))
        body = [message[at : at + FRAME_BYTES_MAX] for at in range(0, len(message), FRAME_BYTES_MAX)]
        answers[connection.call(block(headers_of(METHOD)), body)[1]] = size
    await asyncio.wait_for(asyncio.gather(*answers), 20)
    assert [one.result().data for one in answers] == [prefixed(str(size).encode()) for size in answers.values()]
    connection.close()
    await server.stop(0)
