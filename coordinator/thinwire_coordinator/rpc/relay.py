"""The call Relay: hands parcels on between nodes that cannot reach each other.

The relay reads nothing of a parcel but whom it is for.

The problem: a node that takes its parcels slowly must cost the others nothing, and the coordinator little memory. A
relay that waits for room holds the sender's other peers up. One that drops parcels in silence leaves both ends waiting.

The sketch: a sender waits for room for RELAY_WAIT_S at most. Then, or if the other node is not here, the relay drops
the parcel and tells the sender so (`Parcel.gone`). The sender takes the line for lost, and later begins it again; the
ends number their messages, so that nothing is lost or taken twice. Until either end begins it again, the sender's
parcels on this line are dropped without a word.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc.aio import ServicerContext as Context

from thinwire_common.within import Within
from thinwire_coordinator.rpc.request_bounds import HEADER_BYTES_MAX
from thinwire_coordinator.swarm.byte_budget import ByteBudget
from thinwire_coordinator.swarm.members import Member
from thinwire_proto.limits import RELAY_WAIT_S
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import PART_BYTES_MAX

PAIR_BYTES_MAX = 2 * (PART_BYTES_MAX + HEADER_BYTES_MAX)
"""Parcels from one node for another that wait here."""
RELAY_BYTES_MAX = 128 << 20
"""All parcels that wait here."""
GONE_MAX = 1024
"""Words about lost lines that wait for one node. Each is small; further ones are dropped."""
NODE_BYTES = 16
NOT_GOSSIP = "nothing is relayed in this run: its nodes talk to the coordinator alone"


class Outbox:
    """Parcels that wait for one node."""

    def __init__(self) -> None:
        self.waiting: deque[pb.Parcel] = deque()
        self.sizes: deque[tuple[str, int]] = deque()  # of each: source and bytes; no bytes for words of the relay
        self.by_source: Counter[str] = Counter()
        self.changed = asyncio.Event()
        self.closed = False


class Relay:
    """All lines of a swarm that go through the coordinator."""

    def __init__(self) -> None:
        self._outboxes: dict[str, Outbox] = {}
        self._room = ByteBudget(RELAY_BYTES_MAX)
        self._freed = asyncio.Event()
        self._lost: set[tuple[str, str]] = set()  # (source, target) whose sender was told that the line is lost

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the parcels that wait."""
        return self._room.used

    def open(self, node: str) -> Outbox:
        """A node has opened its stream. An older one gets no further parcels."""
        if (older := self._outboxes.get(node)) is not None:
            self.close(node, older)
        self._outboxes[node] = Outbox()
        return self._outboxes[node]

    def close(self, node: str, outbox: Outbox) -> None:
        """The stream has ended: its parcels are dropped."""
        outbox.closed = True
        outbox.changed.set()
        for _, size in outbox.sizes:
            self._room.give_back(size)
        outbox.waiting.clear()
        outbox.sizes.clear()
        outbox.by_source.clear()
        self._free()
        if self._outboxes.get(node) is outbox:
            del self._outboxes[node]
            self._lost = {pair for pair in self._lost if node != pair[0]}

    async def parcels(self, outbox: Outbox) -> AsyncIterator[pb.Parcel]:
        """The parcels for a node, until its stream is closed."""
        while not outbox.closed:
            if not outbox.waiting:
                outbox.changed.clear()
                await outbox.changed.wait()
                continue
            parcel, (source, size) = outbox.waiting.popleft(), outbox.sizes.popleft()
            outbox.by_source[source] -= size
            self._room.give_back(size)
            self._free()
            yield parcel

    async def take(self, source: str, parcels: AsyncIterator[pb.Parcel]) -> None:
        """Hand on what a node sends, until it ends its stream. One without a node keeps the stream alive."""
        async for parcel in parcels:
            if parcel.node:
                await self._hand_on(source, parcel)

    async def _hand_on(self, source: str, parcel: pb.Parcel) -> None:
        target = parcel.node.hex()
        if parcel.begins:
            self._lost -= {(source, target), (target, source)}
        if (source, target) in self._lost:
            return
        why = "this is its own address" if source == target else ""
        if len(parcel.node) != NODE_BYTES:
            why = f"a node id has {NODE_BYTES} bytes"
        if not why:
            parcel.node, parcel.gone = bytes.fromhex(source), ""
            why = await self._put(source, target, parcel)
        if why:
            self._tell_gone(source, target, why)

    async def _put(self, source: str, target: str, parcel: pb.Parcel) -> str:
        """Queue a parcel. Returns why that was not possible, or nothing."""
        size = parcel.ByteSize()
        try:
            async with Within(RELAY_WAIT_S):
                while (outbox := self._outboxes.get(target)) is not None:
                    has_room = outbox.by_source[source] + size <= PAIR_BYTES_MAX
                    if has_room and self._room.take_now(size):
                        outbox.waiting.append(parcel)
                        outbox.sizes.append((source, size))
                        outbox.by_source[source] += size
                        outbox.changed.set()
                        return ""
                    self._freed.clear()
                    await self._freed.wait()
        except asyncio.TimeoutError:
            return "it takes its messages too slowly"
        return "it is not connected"

    def _tell_gone(self, source: str, target: str, why: str) -> None:
        outbox = self._outboxes.get(source)
        self._lost.add((source, target))
        if outbox is not None and len(outbox.waiting) < GONE_MAX:
            outbox.waiting.append(pb.Parcel(node=bytes.fromhex(target)[:NODE_BYTES], gone=why))
            outbox.sizes.append(("", 0))
            outbox.changed.set()

    def _free(self) -> None:
        self._freed.set()


async def relay_parcels(
    relay: Relay | None, member: Member, parcels: AsyncIterator[pb.Parcel], context: Context[Any, Any]
) -> AsyncIterator[pb.Parcel]:
    """Serve one stream of a node. relay: None if the run needs none."""
    if relay is None:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, NOT_GOSSIP)
    outbox = relay.open(member.node_id)

    async def take() -> None:
        try:
            await relay.take(member.node_id, parcels)
        finally:
            relay.close(member.node_id, outbox)  # so that the stream ends

    taking = asyncio.ensure_future(take())
    try:
        async for parcel in relay.parcels(outbox):
            if member.expelled is not None:
                return
            yield parcel
        if taking.done():
            taking.result()
    finally:
        taking.cancel()
        relay.close(member.node_id, outbox)
