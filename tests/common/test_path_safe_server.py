"""Calls to methods that do not exist are refused, and end nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from grpc_health.v1 import health, health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from support.http2_client import CONNECT_S, Http2Client, prefixed
from thinwire_common.grpc_server import path_safe_server
from thinwire_coordinator.hall.access.admission import AdmissionRules, Bounds
from thinwire_coordinator.hall.rpc.guard import Guard

CHECK = b"/grpc.health.v1.Health/Check"
SERVING = prefixed(health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING).SerializeToString())


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


def send(client: Http2Client, path: bytes, *headers: tuple[bytes, bytes]) -> None:
    client.send(client.open_path(path, *headers), b"")


def is_served(client: Http2Client) -> bool:
    """Whether the health service answers on this connection. It has not answered there before."""
    send(client, CHECK)
    client.socket.settimeout(CONNECT_S)
    received = b""
    while SERVING not in received:
        data = client.socket.recv(1 << 16)
        if not data:
            return False
        received += data
    return True


@pytest.mark.parametrize("path", [b"/\xff", b"/thinwire.v1.Swarm/\xff\xfe", b"\xff" * 4000, b"/nothing", b"", b"*"])
async def test_a_strange_path_ends_neither_server_nor_connection(port: int, path: bytes) -> None:
    """A fuzzer's find: `/\\xff` ended the whole server."""
    with Http2Client(f"127.0.0.1:{port}") as client, Http2Client(f"127.0.0.1:{port}") as other:
        for _ in range(3):
            send(client, path)
        for one in (client, other):
            assert await asyncio.to_thread(is_served, one)


async def test_metadata_that_are_no_text_stay_out_of_the_log(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """A fuzzer's find: gRPC logged a traceback for each."""
    with caplog.at_level("INFO"), Http2Client(f"127.0.0.1:{port}") as client:
        for _ in range(3):
            send(client, b"/nothing", (b"x-text", b"\xff\xee"))
        assert await asyncio.to_thread(is_served, client)
    assert not caplog.records
