"""A relay on a real port, and nodes with lines through it. A session in the metadata is its caller's node id."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc

from thinwire_common.reach.happy_eyeballs import Refusal
from thinwire_common.traffic import Traffic
from thinwire_coordinator.gossip.relay import Relay, relay_parcels
from thinwire_coordinator.hall.access.admission import AdmissionRules, Bounds
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.hall.rpc.calls import session_of
from thinwire_coordinator.hall.rpc.guard import Guard
from thinwire_coordinator.hall.rpc.server import server_options
from thinwire_node.data_addresses import LOOPBACK
from thinwire_node.gossip.lines.direct_lines import DirectLines, LineTimes, refusal_of
from thinwire_node.gossip.lines.lines import PeerLines
from thinwire_node.gossip.lines.server import PeerServer
from thinwire_node.gossip.port import PeerPlace
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.message import Message
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import SESSION
from thinwire_proto.wire.service_pb2_grpc import SwarmServicer, SwarmStub, add_SwarmServicer_to_server

CONTRACT = b"c" * 32
BODY_BYTES_MAX = 5 << 20


def message(sequence: int, size: int = 100) -> Message:
    return Message(1, sequence - 1, sequence, 0, "dense", 7, wants_snapshot=False, body=bytes([sequence]) * size)


class RelayService(SwarmServicer):
    """Serves Relay alone. alter: may change what is handed on."""

    def __init__(self) -> None:
        self.relay = Relay()
        self.members: dict[str, Member] = {}
        self.counts = Counts(1)

    async def Relay(self, requests: AsyncIterator[pb.Parcel], context: Any) -> AsyncIterator[pb.Parcel]:
        node = session_of(context)
        async for parcel in relay_parcels(self.relay, self.member(node), requests, self.counts.of(node)):
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


ONE_RELAY = "one Relay at a time in a session"
TIMES = LineTimes(first_s=0.05, max_s=0.2, direct_s=0.3)
DIRECT_ALONE = replace(TIMES, direct_s=30.0)
"""The relay does not take over from a direct line that comes slowly."""
HERE = DirectLines(refusal=refusal_of(LOOPBACK))
"""Connects to peers on this machine, and listens for none."""


@dataclass
class Pair:
    """Two nodes, and the relay between them."""

    one: Node
    two: Node
    service: RelayService

    async def start(self) -> None:
        """Connect both to the relay."""
        await self.one.start()
        await self.two.start()


class Node:
    """One end. Keeps what it sent until it is confirmed, as a member does. absences: who was lost, and why.

    address: of the relay. direct: see `listening`; None: it uses the relay alone."""

    def __init__(
        self, address: str, key: SecretKey | None = None, direct: DirectLines | None = None, times: LineTimes = TIMES
    ) -> None:
        self.key = key or SecretKey()
        self.session = self.id
        self.traffic = Traffic()
        self.direct = direct or DirectLines()
        self.lines = PeerLines(self.key, CONTRACT, BODY_BYTES_MAX, self, direct, self.traffic, times)
        self.messages: list[tuple[int, Message]] = []
        self.unconfirmed: dict[int, list[Message]] = {}
        self.refuses = False
        self.absences: list[tuple[int, str]] = []
        self.changed = asyncio.Event()
        self.relay_address = address
        self._running: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.key.public.node_id

    @property
    def taken(self) -> list[Message]:
        """The messages without repeats, which a member drops by their numbers."""
        return list({message.sequence: message for _, message in self.messages}.values())

    def knows(self, **others: Node | PeerPlace) -> None:
        """others: by the letter n and the member number."""
        self.lines.assign({int(number[1:]): _place(other) for number, other in others.items()})

    async def start(self) -> None:
        """Connect to the relay."""
        self._running = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Leave the relay."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    async def leave(self) -> None:
        """End all."""
        await self.stop()
        await self.lines.close()

    async def _run(self) -> None:
        """Have the relay until it is gone. While the coordinator does not know yet that this session's connection was
        cut, it refuses another one; a node that trains begins a new session then."""
        refused = True
        while refused:
            refused = False
            try:
                await self._relay()
            except grpc.aio.AioRpcError as error:
                refused = error.details() == ONE_RELAY

    async def _relay(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]  # not the connection that was lost, with its pause
        async with grpc.aio.insecure_channel(self.relay_address, options=options) as channel:
            stub: Any = SwarmStub(channel)

            async def relay(parcels: AsyncIterator[Any]) -> Any:
                call = stub.Relay(parcels, metadata=((SESSION, self.session),))
                async for parcel in call:
                    yield parcel

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


def _place(other: Node | PeerPlace) -> PeerPlace:
    return other if isinstance(other, PeerPlace) else PeerPlace(other.key.public, other.direct.listens_at)


async def listening(key: SecretKey, port: int = 0, refusal: Refusal | None = HERE.refusal) -> DirectLines:
    """Listens on this machine for the peers of the node with this key."""
    server = PeerServer(key, CONTRACT, 16, refusal_pause_s=0.0)
    await server.start("127.0.0.1", port)
    return DirectLines(server, f"127.0.0.1:{server.port}", refusal)


def two_keys() -> tuple[SecretKey, SecretKey]:
    """Two keys; the first one has the smaller node id, and so dials if both listen."""
    one, two = sorted((SecretKey(), SecretKey()), key=lambda key: key.public.node_id)
    return one, two


@asynccontextmanager
async def relayed_pair() -> AsyncIterator[Pair]:
    """Two nodes that know each other, as members 1 and 2, and have not begun. They are stopped at the end."""
    async with relay_service() as (address, service):
        one, two = Node(address), Node(address)
        one.knows(n2=two)
        two.knows(n1=one)
        try:
            yield Pair(one, two, service)
        finally:
            await one.leave()
            await two.leave()


@asynccontextmanager
async def direct_pair(
    listens: str = "both",
    address_of_two: str = "",
    keys: tuple[SecretKey, SecretKey] | None = None,
    times: LineTimes = TIMES,
) -> AsyncIterator[Pair]:
    """The same, of nodes on which `listens` is said: both, one, two, or nobody. address_of_two: that node one is told,
    in place of the right one."""
    first, second = keys or two_keys()
    one = await listening(first) if listens in ("both", "one") else HERE
    two = await listening(second) if listens in ("both", "two") else HERE
    async with pair_of((first, one), (second, two), address_of_two, times) as pair:
        yield pair


End = tuple[SecretKey, DirectLines]


@asynccontextmanager
async def pair_of(one: End, two: End, address_of_two: str = "", times: LineTimes = TIMES) -> AsyncIterator[Pair]:
    """Two nodes with these keys and lines."""
    async with relay_service() as (address, service):
        pair = Pair(Node(address, *one, times), Node(address, *two, times), service)
        pair.one.knows(n2=PeerPlace(pair.two.key.public, address_of_two or pair.two.direct.listens_at))
        pair.two.knows(n1=pair.one)
        try:
            yield pair
        finally:
            await pair.one.leave()
            await pair.two.leave()
