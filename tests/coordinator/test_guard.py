"""Tests the guard on a real port: what comes too often, too late or too large ends with a reason, and costs little."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc

from support.http2_client import WINDOW_MAX, Http2Client, closed_within
from support.raw_calls import in_session
from thinwire_coordinator.hall.access.admission import AdmissionRules, Bounds
from thinwire_coordinator.hall.access.door import Denied
from thinwire_coordinator.hall.rpc.guard import Guard, Patience
from thinwire_coordinator.hall.rpc.request_bounds import REQUEST_BYTES_MAX, SMALL_BYTES_MAX
from thinwire_coordinator.hall.rpc.server import METADATA_BYTES_MAX, server_options
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import REASON, SESSION
from thinwire_proto.wire.parts import PART_BYTES_MAX
from thinwire_proto.wire.service_pb2_grpc import SwarmServicer, SwarmStub, add_SwarmServicer_to_server

NODES_MAX = 4
LONG = Patience(first_message_s=60.0, part_s=60.0, accept_s=60.0, call_s=60.0, refusal_pause_s=0.01)
SHORT = Patience(first_message_s=0.2, part_s=0.2, accept_s=0.2, call_s=30.0, refusal_pause_s=0.01)
SESSION_HEADER = (SESSION.encode(), b"secret")


class Echo(SwarmServicer):
    """Answers some of the calls, with what the test needs."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.streaming = asyncio.Event()

    async def Probe(self, request: pb.ProbeRequest, context: Any) -> pb.ProbeReply:
        return pb.ProbeReply(term=7)

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:
        return pb.StatusReply(term=7)

    async def Contribute(self, requests: AsyncIterator[pb.ContributionPart], context: Any) -> pb.Receipt:
        return pb.Receipt(step=sum([len(part.data) async for part in requests]))

    async def Snapshot(self, request: pb.SnapshotRequest, context: Any) -> AsyncIterator[pb.FilePart]:
        try:
            self.streaming.set()
            for _ in range(request.step):
                yield pb.FilePart(data=bytes(PART_BYTES_MAX))
        finally:
            self.ended.set()


@dataclass
class Guarded:
    address: str
    guard: Guard
    echo: Echo
    told: list[Denied]
    stranger: Any
    member: Any


@asynccontextmanager
async def guarded(patience: Patience = LONG, now: Callable[[], float] | None = None) -> AsyncIterator[Guarded]:
    rules, told = AdmissionRules(Bounds(NODES_MAX)), list[Denied]()
    guard = Guard(
        rules,
        lambda secret: "a-node" if secret == "secret" else None,
        now or asyncio.get_running_loop().time,
        told.append,
        patience,
    )
    server, echo = grpc.aio.server(options=server_options(rules.bounds), interceptors=[guard]), Echo()  # type: ignore[abstract]  # a few calls are enough
    add_SwarmServicer_to_server(echo, server)
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield Guarded(address, guard, echo, told, SwarmStub(channel), in_session(channel, "secret"))  # type: ignore[arg-type]
    finally:
        await server.stop(0)


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    """The status of a call that fails, and the reason in its metadata."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    reasons = [value for key, value in error.value.trailing_metadata() or () if key == REASON]
    return error.value.code(), str(*reasons)


async def test_a_message_that_does_not_come_ends_the_call() -> None:
    async with guarded(SHORT) as found:
        never = asyncio.Event()

        async def parts(count: int) -> AsyncIterator[pb.ContributionPart]:
            for _ in range(count):
                yield pb.ContributionPart()
            await never.wait()

        slow = (grpc.StatusCode.DEADLINE_EXCEEDED, "slow")
        assert await refused(found.member.Contribute(parts(0))) == slow
        assert await refused(found.member.Contribute(parts(2))) == slow
        assert len(found.guard.rules.calls) == 0


async def test_without_a_session_only_a_few_calls_begin() -> None:
    async with guarded() as found:
        strange = found.stranger
        for call in (strange.Probe(pb.ProbeRequest()), strange.Contribute(iter([])), strange.Leave(pb.LeaveRequest())):
            assert await refused(call) == (grpc.StatusCode.NOT_FOUND, "")
        assert (await strange.Status(pb.StatusRequest())).term == 7
        assert len(found.guard.rules.calls) == 0


async def test_strangers_that_send_nothing_give_way_to_one_that_does() -> None:
    async with guarded(replace(SHORT, first_message_s=1000.0)) as found:
        bounds = found.guard.rules.bounds
        with ExitStack() as kept:
            for opened in range(1, bounds.strangers_calls_a_network + 1):
                client = kept.enter_context(Http2Client(found.address))
                client.open("Status")
                while found.guard.rules.calls.of_strangers < opened:
                    await asyncio.sleep(0)
            for _ in range(3):
                assert (await found.stranger.Status(pb.StatusRequest())).term == 7
            assert found.guard.rules.calls.of_strangers == bounds.strangers_calls_a_network - 1
        while len(found.guard.rules.calls):
            await asyncio.sleep(0)


async def test_large_and_wrong_messages_are_refused_before_they_are_parsed() -> None:
    async with guarded() as found, grpc.aio.insecure_channel(found.address) as channel:
        probe: Any = channel.unary_unary("/thinwire.v1.Swarm/Status")
        assert await refused(probe(bytes(SMALL_BYTES_MAX + 1))) == (grpc.StatusCode.INVALID_ARGUMENT, "too_large")
        assert await refused(probe(b"\xff\xff")) == (grpc.StatusCode.INVALID_ARGUMENT, "malformed")
        assert await refused(probe(bytes(REQUEST_BYTES_MAX + 1))) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "")
        long = (("name", "x" * METADATA_BYTES_MAX),)
        assert await refused(probe(b"", metadata=long)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "")
        assert (await found.member.Probe(pb.ProbeRequest())).term == 7


async def test_a_stranger_that_calls_too_often_is_refused_but_not_a_member_at_the_same_address() -> None:
    async with guarded(now=lambda: 0.0) as found:
        refusal = None
        for _ in range(found.guard.rules.bounds.strangers_calls.burst + 100):
            try:
                await found.stranger.Status(pb.StatusRequest())
            except grpc.aio.AioRpcError as error:
                refusal = error
                break
        assert refusal is not None
        assert refusal.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (REASON, "rate") in tuple(refusal.trailing_metadata() or ())
        assert found.told[-1].reason.value == "rate"
        assert (await found.member.Probe(pb.ProbeRequest())).term == 7


async def test_a_peer_that_reads_nothing_loses_its_connection_and_the_call_ends() -> None:
    async with guarded() as found:
        with Http2Client(found.address) as reader, Http2Client(found.address, window=WINDOW_MAX) as greedy:
            for client in (reader, greedy):
                found.echo.ended.clear()
                stream = client.open("Snapshot", SESSION_HEADER)
                client.send(stream, pb.SnapshotRequest(step=1000).SerializeToString())
                await asyncio.wait_for(found.echo.ended.wait(), 30)
                assert await asyncio.to_thread(client.closed_within, 30)
        assert (await found.member.Probe(pb.ProbeRequest())).term == 7
        assert len(found.guard.rules.calls) == 0


async def test_connections_are_bounded_and_that_of_a_member_stays() -> None:
    async with guarded() as found:
        assert (await found.member.Probe(pb.ProbeRequest())).term == 7
        host, _, port = found.address.rpartition(":")
        room = found.guard.rules.bounds.connections_max - 1  # one is the member's
        silent = [socket.create_connection((host, int(port))) for _ in range(room + 50)]
        try:
            assert all([await asyncio.to_thread(closed_within, one, 10.0) for one in silent[room:]])
            assert not any([await asyncio.to_thread(closed_within, one, 0.01) for one in (silent[0], silent[room - 1])])
            assert (await found.member.Probe(pb.ProbeRequest())).term == 7
        finally:
            for one in silent:
                one.close()
