"""A relay on a real port, and nodes with lines through it. A session in the metadata is its caller's node id."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from thinwire_coordinator.access.admission_rules import AdmissionRules
from thinwire_coordinator.access.bounds import Bounds
from thinwire_coordinator.rpc.calls import session_of
from thinwire_coordinator.rpc.guard import Guard
from thinwire_coordinator.rpc.relay import Relay, relay_parcels
from thinwire_coordinator.rpc.server_options import server_options
from thinwire_coordinator.swarm.members import Member
from thinwire_node.exchange.peers.lines import PeerLines
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.copies import Message
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import SESSION
from thinwire_proto.wire.service_pb2_grpc import SwarmServicer, SwarmStub, add_SwarmServicer_to_server

CONTRACT = b"c" * 32
BODY_BYTES_MAX = 5 << 20


class RelayService(SwarmServicer):
    """Serves Relay alone. alter: may change what is handed on."""

    def __init__(self) -> None:
        self.relay = Relay()
        self.members: dict[str, Member] = {}

    async def Relay(self, requests: AsyncIterator[pb.Parcel], context: Any) -> AsyncIterator[pb.Parcel]:
        node = session_of(context)
        async for parcel in relay_parcels(self.relay, self.member(node), requests, context):
            yield self.alter(parcel)

    def member(self, node: str) -> Member:
        return self.members.setdefault(node, Member(PublicKey(bytes(32)), node, node, node))

    def alter(self, parcel: pb.Parcel) -> pb.Parcel:
        return parcel


@asynccontextmanager
async def relay_service(port: int = 0) -> AsyncIterator[tuple[str, RelayService]]:
    """The service, behind the real guard, and its address."""
    rules = AdmissionRules(Bounds(16))
    service = RelayService()  # type: ignore[abstract]  # it serves one call
    guard = Guard(rules, lambda secret: secret or None, asyncio.get_running_loop().time)
    server = grpc.aio.server(options=server_options(rules.bounds), interceptors=[guard])
    add_SwarmServicer_to_server(service, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", service
    finally:
        await server.stop(0)


class Node:
    """One end. Keeps what it sent until it is confirmed, as a member does. events: what happened, in order."""

    def __init__(self, address: str) -> None:
        self.key = SecretKey()
        self.lines = PeerLines(self.key, CONTRACT, BODY_BYTES_MAX, self)
        self.messages: list[tuple[int, Message]] = []
        self.unconfirmed: dict[int, list[Message]] = {}
        self.refuses = False
        self.absences: list[tuple[int, str]] = []
        self.changed = asyncio.Event()
        self._address = address
        self._running: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.key.public.node_id

    def knows(self, **others: Node) -> None:
        self.lines.assign({int(number.removeprefix("n")): other.key.public for number, other in others.items()})

    async def start(self) -> None:
        self._running = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        assert self._running is not None
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running

    async def _run(self) -> None:
        async with grpc.aio.insecure_channel(self._address) as channel:
            stub: Any = SwarmStub(channel)

            async def relay(parcels: AsyncIterator[Any]) -> Any:
                call = stub.Relay(parcels, metadata=((SESSION, self.id),))
                async for parcel in call:
                    yield parcel

            with contextlib.suppress(grpc.aio.AioRpcError):  # the relay is gone
                await self.lines.run(relay)

    def send(self, peer: int, message: Message) -> None:
        self.unconfirmed.setdefault(peer, []).append(message)
        self.lines.send(peer, message)

    async def until(self, holds: Any) -> None:
        """Wait until a condition holds; something happens before."""
        async with asyncio.timeout(20) if hasattr(asyncio, "timeout") else contextlib.nullcontext():
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    # the listener

    def received(self, peer: int, message: Message) -> None:
        if self.refuses:
            raise PayloadError("this node takes nothing now")
        self.messages.append((peer, message))
        self.changed.set()

    def confirmed(self, peer: int, sequence: int) -> None:
        kept = self.unconfirmed.get(peer, [])
        self.unconfirmed[peer] = [message for message in kept if message.sequence > sequence]
        self.changed.set()

    def present(self, peer: int) -> None:
        for message in self.unconfirmed.get(peer, []):
            self.lines.send(peer, message)
        self.changed.set()

    def absent(self, peer: int, why: str) -> None:
        self.absences.append((peer, why))
        self.changed.set()

    def received_from(self, peer: int) -> int:
        return max((message.sequence for sender, message in self.messages if sender == peer), default=0)
