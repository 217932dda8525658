"""Calls to methods that do not exist are refused, and end nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from fuzz.wire.calls import headers_of, prefixed
from fuzz.wire.connection import Connection
from fuzz.wire.frames import block
from thinwire_common.serving.path_safe_server import path_safe_server
from thinwire_coordinator.hall.access.admission import AdmissionRules, Bounds
from thinwire_coordinator.hall.rpc.guard import Guard

CHECK = "/grpc.health.v1.Health/Check"
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED.value[0]
SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """The port of a server with gRPC's health service."""
    guard = Guard(AdmissionRules(Bounds(nodes_max=1)), lambda secret: None, asyncio.get_running_loop().time)
    server = path_safe_server(maximum_concurrent_rpcs=50, interceptors=[guard])
    add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    found = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield found
    await server.stop(0)


async def answer(connection: Connection, path: str) -> Any:
    _, answer = connection.call(block(headers_of(path)), [prefixed(b"")])
    return await asyncio.wait_for(answer, 20)


@pytest.mark.parametrize("path", ["/\xff", "/thinwire.v1.Swarm/\xff\xfe", "\xff" * 4000, "/nothing", "", "*"])
async def test_a_strange_path_ends_neither_server_nor_connection(port: int, path: str) -> None:
    """A fuzzer's find: `/\\xff` ended the whole server."""
    connection, other = await Connection.open("127.0.0.1", port), await Connection.open("127.0.0.1", port)
    for _ in range(3):
        assert (await answer(connection, path)).status == UNIMPLEMENTED
    for one in (connection, other):
        answered = await answer(one, CHECK)
        assert (answered.status, answered.data) == (0, prefixed(SERVING.SerializeToString()))
        one.close()


async def test_metadata_that_are_no_text_stay_out_of_the_log(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """A fuzzer's find: gRPC logged a traceback for each."""
    connection = await Connection.open("127.0.0.1", port)
    headers = [*headers_of(CHECK), (b"x-text", b"\xff\xee")]
    with caplog.at_level("INFO"):
        for _ in range(3):
            _, answered = connection.call(block(headers), [prefixed(b"")])
            await asyncio.wait_for(answered, 20)
        assert (await answer(connection, CHECK)).status == 0
    assert not caplog.records
    connection.close()
