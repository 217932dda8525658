"""Abuse of the relay, behind the real guard on a real port: what it lets through, bounds and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from support.relayed import RelayService, relay_service
from thinwire_coordinator.gossip import relay as relay_module
from thinwire_coordinator.gossip.relay import LINES_MAX, PAIR_BYTES_MAX, PARCEL_BYTES
from thinwire_coordinator.hall.access.door import Denied, DoorReason
from thinwire_coordinator.hall.rpc.request_bounds import HEADER_BYTES_MAX
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import REASON, SESSION
from thinwire_proto.wire.parts import PART_BYTES_MAX
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

LONG_S = 30.0
"""A test that hangs for so long fails."""


def some_id() -> str:
    return SecretKey().public.node_id


class Caller:
    """One stream to the relay, written and read by hand."""

    def __init__(self, channel: grpc.aio.Channel, node: str) -> None:
        self.node = node
        stub: Any = SwarmStub(channel)
        self.call = stub.Relay(metadata=((SESSION, node),))

    async def send(self, target: str, data: bytes = b"", **fields: Any) -> None:
        await self.call.write(pb.Parcel(node=bytes.fromhex(target), data=data, **fields))

    async def read(self) -> pb.Parcel:
        parcel = await asyncio.wait_for(self.call.read(), LONG_S)
        assert isinstance(parcel, pb.Parcel), await self.call.details()
        return parcel

    async def refusal(self) -> tuple[grpc.StatusCode, str, str]:
        """Code, text and reason with which the stream ends. What comes before is dropped."""
        try:
            while await asyncio.wait_for(self.call.read(), LONG_S) is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        trailing = dict(await self.call.trailing_metadata())
        return await self.call.code(), await self.call.details(), trailing.get(REASON, "")


@asynccontextmanager
async def callers(*nodes: str) -> AsyncIterator[tuple[RelayService, list[Caller]]]:
    """A relay, and a stream of each node on a connection of its own."""
    async with relay_service() as (address, service):
        options = (("grpc.use_local_subchannel_pool", 1),)
        channels = [grpc.aio.insecure_channel(address, options=options) for _ in nodes]
        try:
            found = [Caller(channel, node) for channel, node in zip(channels, nodes, strict=True)]
            for caller in found:
                await caller.call.write(pb.Parcel())
            await until(lambda: all(service.relay.is_open(node) for node in nodes))
            yield service, found
        finally:
            for channel in channels:
                await channel.close()


async def until(holds: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not holds():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), LONG_S)


async def test_the_relay_names_the_sender_whatever_it_says() -> None:
    async with callers(some_id(), some_id()) as (_, (one, two)):
        await one.send(two.node, b"text", gone="this is not the relay's word", acknowledged=7)
        found = await two.read()
        assert found == pb.Parcel(node=bytes.fromhex(one.node), data=b"text", acknowledged=7)


async def test_an_unknown_node_and_the_own_one_are_gone_and_other_lines_go_on() -> None:
    nobody = some_id()
    async with callers(some_id(), some_id()) as (_, (one, two)):
        await one.send(nobody, b"lost")
        assert await one.read() == pb.Parcel(node=bytes.fromhex(nobody), gone="it is not connected")
        await one.send(nobody, b"dropped without a word")
        await one.send(one.node, b"lost")
        assert await one.read() == pb.Parcel(node=bytes.fromhex(one.node), gone="this is its own address")
        await one.send(two.node, b"text")
        assert (await two.read()).data == b"text"
        await one.send(nobody, begins=True)
        assert (await one.read()).node == bytes.fromhex(nobody), "a line that is begun again is tried again"


@pytest.mark.parametrize("size", [1, 15, 17, PART_BYTES_MAX])
async def test_what_is_no_node_id_ends_the_stream(size: int) -> None:
    async with callers(some_id()) as (service, (one,)):
        await one.call.write(pb.Parcel(node=bytes(size)))
        code, text, reason = await one.refusal()
        assert (code, reason) == (grpc.StatusCode.PERMISSION_DENIED, "malformed")
        assert "16 bytes" in text
        await until(lambda: not service.relay.is_open(one.node))


async def test_a_flood_of_unknown_nodes_ends_the_stream_and_leaves_nothing() -> None:
    async with callers(some_id(), some_id()) as (service, (one, two)):

        async def flood() -> None:
            for _ in range(2 * LINES_MAX):
                await one.send(some_id())

        flooding = asyncio.ensure_future(flood())
        code, text, reason = await one.refusal()
        await asyncio.gather(flooding, return_exceptions=True)
        assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "rate")
        assert f"{LINES_MAX} nodes" in text
        await until(lambda: not service.relay.is_open(one.node))
        assert service.relay.lost_lines == 0
        await two.send(one.node)
        assert (await two.read()).gone == "it is not connected"


async def test_a_giant_parcel_ends_the_stream_before_it_is_parsed() -> None:
    async with callers(some_id(), some_id()) as (service, (one, two)):
        await one.send(two.node, bytes(PART_BYTES_MAX + HEADER_BYTES_MAX))
        code, text, reason = await one.refusal()
        assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "too_large"), text
        assert service.relay.waiting_bytes == 0


@pytest.mark.parametrize("size", [0, PART_BYTES_MAX])
async def test_a_node_that_takes_nothing_holds_few_parcels_and_its_sender_is_told(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "RELAY_WAIT_S", 0.2)
    async with callers(some_id()) as (service, (one,)):
        slow = some_id()
        outbox = service.relay.open(slow)  # nobody reads it
        for _ in range(PAIR_BYTES_MAX // (size + PARCEL_BYTES) + 1):
            await one.send(slow, bytes(size))
        told = await one.read()
        assert (told.node.hex(), told.gone) == (slow, "it takes its messages too slowly")
        assert 0 < len(outbox.waiting) * (size + PARCEL_BYTES) <= service.relay.waiting_bytes <= PAIR_BYTES_MAX
        service.relay.close(slow, outbox)
        assert service.relay.waiting_bytes == 0


async def test_all_lines_together_hold_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "RELAY_WAIT_S", 0.2)
    monkeypatch.setattr(relay_module, "RELAY_BYTES_MAX", PART_BYTES_MAX)
    async with callers(some_id(), some_id()) as (service, (one, two)):
        slow = [some_id(), some_id()]
        boxes = [service.relay.open(node) for node in slow]
        for target in slow:
            await one.send(target, bytes(PART_BYTES_MAX // 3 * 2))
        told = await one.read()
        assert (told.node.hex(), told.gone) == (slow[1], "it takes its messages too slowly")
        assert [len(box.waiting) for box in boxes] == [1, 0]
        service.relay.close(slow[0], boxes[0])
        await one.send(two.node, bytes(PART_BYTES_MAX // 3 * 2))
        assert len((await two.read()).data) == PART_BYTES_MAX // 3 * 2


async def test_a_banned_node_is_heard_no_more() -> None:
    async with callers(some_id(), some_id()) as (service, (one, two)):
        service.members[one.node].expelled = Denied(DoorReason.BANNED, "banned by the organizer")
        await one.send(two.node, b"text")
        code, text, reason = await one.refusal()
        assert (code, text, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "banned by the organizer", "banned")
        await two.send(one.node)
        assert (await two.read()).gone == "it is not connected"


async def test_who_has_sent_to_a_node_is_told_that_it_left_though_nothing_more_is_sent() -> None:
    """Its parcels may wait, or be on their way to a program that has ended. Who waits for an answer would wait long."""
    async with callers(some_id(), some_id(), some_id()) as (_, (one, other, leaves)):
        for sender in (one, other):
            await sender.send(leaves.node, b"read")
            assert (await leaves.read()).data == b"read"
        leaves.call.cancel()
        for sender in (one, other):
            assert await sender.read() == pb.Parcel(node=bytes.fromhex(leaves.node), gone="it is not connected")


async def test_a_dropped_connection_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "RELAY_WAIT_S", 0.2)
    async with callers(some_id(), some_id()) as (service, (one, two)):
        while True:  # until the windows of HTTP/2 are full too, because `two` reads nothing
            await one.send(two.node, bytes(PART_BYTES_MAX))
            if service.relay.waiting_bytes > PART_BYTES_MAX:
                break
        two.call.cancel()
        await until(lambda: not service.relay.is_open(two.node))
        await until(lambda: service.relay.waiting_bytes == 0)
        await one.send(two.node)
        assert (await one.read()).gone in {"it is not connected", "it takes its messages too slowly"}
