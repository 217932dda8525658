"""Bytes that are no message of a call are refused with a typed status, and do not reach the log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from thinwire_coordinator.hall.access.admission import AdmissionRules, Bounds
from thinwire_coordinator.hall.rpc.guard import UNREADABLE, Guard
from thinwire_coordinator.hall.rpc.request_bounds import SERVICE
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import SESSION
from thinwire_proto.wire.service_pb2_grpc import SwarmServicer, add_SwarmServicer_to_server

JUNK = b"\xff\xff"
IN_SESSION = ((SESSION, "any"),)


class Service(SwarmServicer):
    """One call of each shape."""

    async def Probe(self, request: pb.ProbeRequest, context: Any) -> pb.ProbeReply:
        return pb.ProbeReply(term=7)

    async def Attend(self, request: pb.AttendRequest, context: Any) -> AsyncIterator[pb.Announcement]:
        yield pb.Announcement(step=7)

    async def Contribute(self, request_iterator: AsyncIterator[pb.ContributionPart], context: Any) -> pb.Receipt:
        parts = [part async for part in request_iterator]
        return pb.Receipt(step=len(parts))


@pytest.fixture
async def channel() -> AsyncIterator[Any]:
    guard = Guard(AdmissionRules(Bounds(nodes_max=1)), lambda secret: "a-node", lambda: 0.0)
    server = grpc.aio.server(interceptors=[guard])
    add_SwarmServicer_to_server(Service(), server)  # type: ignore[abstract]  # three calls are enough
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(0)


async def parts(*data: bytes) -> AsyncIterator[bytes]:
    for part in data:
        yield part


async def answers(channel: Any, first: bytes, *more: bytes) -> list[bytes]:
    """The answers of all three calls to a first message, and for Contribute to those after it."""
    found = [await channel.unary_unary(f"/{SERVICE}/Probe")(first, metadata=IN_SESSION)]
    found += [message async for message in channel.unary_stream(f"/{SERVICE}/Attend")(first, metadata=IN_SESSION)]
    return [*found, await channel.stream_unary(f"/{SERVICE}/Contribute")(parts(first, *more), metadata=IN_SESSION)]


async def junk_to(channel: Any, method: str) -> None:
    if method == "Probe":
        await channel.unary_unary(f"/{SERVICE}/Probe")(JUNK, metadata=IN_SESSION)
    elif method == "Attend":
        await channel.unary_stream(f"/{SERVICE}/Attend")(JUNK, metadata=IN_SESSION).read()
    else:
        await channel.stream_unary(f"/{SERVICE}/Contribute")(parts(*[b""][: "," in method], JUNK), metadata=IN_SESSION)


async def test_messages_are_answered(channel: Any) -> None:
    probed, attended, contributed = await answers(channel, b"", b"")
    assert pb.ProbeReply.FromString(probed).term == 7
    assert pb.Announcement.FromString(attended).step == 7
    assert pb.Receipt.FromString(contributed).step == 2


@pytest.mark.parametrize("method", ["Probe", "Attend", "Contribute", "Contribute, second part"])
async def test_junk_is_refused_without_a_line_in_the_log(
    channel: Any, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(grpc.aio.AioRpcError) as raised:
        await junk_to(channel, method)
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == UNREADABLE
    assert not caplog.records
