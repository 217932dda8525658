"""The call Relay: hands parcels on between nodes that cannot reach each other.

The relay reads nothing of a parcel but whom it is for.

The problem: a node that takes its parcels slowly must cost the others nothing, and the coordinator little memory. A
relay that waits for room holds the sender's other peers up. One that drops parcels in silence leaves both ends waiting.

The sketch: a sender waits for room for RELAY_WAIT_S at most. Then, or if the other node is not here, the relay drops
the parcel and tells the sender so (`Parcel.gone`). When a node leaves, all who have sent to it are told. The sender
takes the line for lost, and later begins it again; the ends number their messages, so that nothing is lost or taken
twice. Until either end begins it again, the sender's parcels on this line are dropped without a word. A node that has
taken nothing for LOST_AFTER_S, while others wait for room, has its stream ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator

from thinwire_common.within import Within
from thinwire_coordinator.hall.access.door import Denied, DoorReason
from thinwire_coordinator.hall.byte_budget import ByteBudget
from thinwire_coordinator.hall.counts import NodeCounts
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.hall.rpc.calls import CallRefused
from thinwire_coordinator.hall.rpc.request_bounds import HEADER_BYTES_MAX
from thinwire_proto.limits import LOST_AFTER_S, RELAY_WAIT_S
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import PART_BYTES_MAX

PAIR_BYTES_MAX = 2 * (PART_BYTES_MAX + HEADER_BYTES_MAX)
"""Parcels from one node for another that wait here."""
RELAY_BYTES_MAX = 128 << 20
"""All parcels that wait here."""
PARCEL_BYTES = 2 << 10
"""The memory of a parcel beside its contents, so that many small ones are bounded too. Measured: 600 bytes if it is
empty, 1,000 with a header."""
LINES_MAX = 256
"""Lost lines of one node, and words about them that wait for it. A node that needs more has its stream ended."""
NODE_BYTES = 16
BAD_ID = Denied(DoorReason.MALFORMED, f"a parcel names a node by the {NODE_BYTES} bytes of its id")
FLOOD = Denied(DoorReason.RATE, f"this node has sent parcels to {LINES_MAX} nodes that are away or slow; connect again")
UNREAD = Denied(DoorReason.RATE, f"{LINES_MAX} words about lost lines wait for this node, unread; connect again")
NOT_CONNECTED = "it is not connected"


class Outbox:
    def __init__(self) -> None:
        self.waiting: deque[pb.Parcel] = deque()
        self.sizes: deque[tuple[str, int]] = deque()  # of each: source and bytes; no bytes for words of the relay
        self.by_source: Counter[str] = Counter()
        self.changed = asyncio.Event()
        self.words = 0  # of the relay, among those that wait
        self.moved_at = asyncio.get_running_loop().time()  # when it last was empty, or lost a parcel
        self.closed = False


class Relay:
    """All lines of a swarm that go through the coordinator."""

    def __init__(self) -> None:
        self._outboxes: dict[str, Outbox] = {}
        self._room = ByteBudget(RELAY_BYTES_MAX)
        self._freed = asyncio.Event()
        self._lost: defaultdict[str, set[str]] = defaultdict(set)  # by source: targets that it was told are gone

    @property
    def waiting_bytes(self) -> int:
        return self._room.used

    @property
    def lost_lines(self) -> int:
        """Lines whose sender was told that they are lost."""
        return sum(map(len, self._lost.values()))

    def is_open(self, node: str) -> bool:
        return node in self._outboxes

    def open(self, node: str) -> Outbox:
        """A node has opened its stream. An older one gets no further parcels, and nobody is told of its end: the node
        begins all its lines again."""
        older, self._outboxes[node] = self._outboxes.get(node), Outbox()
        if older is not None:
            self._lost.pop(node, None)
            self.close(node, older)
        return self._outboxes[node]

    def close(self, node: str, outbox: Outbox) -> None:
        """The stream has ended: its parcels are dropped, and all who have sent any are told."""
        sources = list(outbox.by_source)
        outbox.closed = True
        outbox.changed.set()
        for _, size in outbox.sizes:
            self._room.give_back(size)
        outbox.waiting.clear()
        outbox.sizes.clear()
        outbox.by_source.clear()
        outbox.words = 0
        self._free()
        if self._outboxes.get(node) is outbox:
            del self._outboxes[node]
            self._lost.pop(node, None)
            for source in sources:
                if self._may_tell(source):  # else it is told with its next parcel
                    self._tell_gone(source, node, NOT_CONNECTED)

    async def parcels(self, outbox: Outbox) -> AsyncIterator[pb.Parcel]:
        """The parcels for a node, until its stream is closed."""
        while not outbox.closed:
            if not outbox.waiting:
                outbox.changed.clear()
                await outbox.changed.wait()
                continue
            parcel, (source, size) = outbox.waiting.popleft(), outbox.sizes.popleft()
            outbox.by_source[source] -= size
            outbox.words -= not source
            outbox.moved_at = asyncio.get_running_loop().time()
            self._room.give_back(size)
            self._free()
            yield parcel

    async def take(self, member: Member, parcels: AsyncIterator[pb.Parcel], counts: NodeCounts | None = None) -> None:
        """Hand on what a node sends, until it ends its stream. One without a node keeps the stream alive.

        counts: of the node.

        Raises CallRefused, with a reason, if the node has to stop."""
        async for parcel in parcels:
            if member.expelled is not None:
                raise CallRefused(member.expelled)
            if counts is not None:
                size = parcel.ByteSize()
                counts.relay_up += size
                counts.bytes_up += size
            if not parcel.node:
                continue
            if len(parcel.node) != NODE_BYTES:
                raise CallRefused(BAD_ID)
            await self._hand_on(member.node_id, parcel)

    async def _hand_on(self, source: str, parcel: pb.Parcel) -> None:
        target = parcel.node.hex()
        if parcel.begins:
            self._find(source, target)
            self._find(target, source)
        if target in self._lost.get(source, ()):
            return
        if source == target:
            why = "this is its own address"
        else:
            parcel.node, parcel.gone = bytes.fromhex(source), ""
            why = await self._put(source, target, parcel)
        if why:
            self._tell_gone(source, target, why)

    def _find(self, source: str, target: str) -> None:
        if source in self._lost:
            self._lost[source].discard(target)

    async def _put(self, source: str, target: str, parcel: pb.Parcel) -> str:
        """Queue a parcel. Returns why that was not possible, or nothing."""
        size = parcel.ByteSize() + PARCEL_BYTES
        try:
            async with Within(RELAY_WAIT_S):
                while (outbox := self._outboxes.get(target)) is not None:
                    has_room = outbox.by_source[source] + size <= PAIR_BYTES_MAX
                    if has_room and self._room.take_now(size):
                        if not outbox.waiting:
                            outbox.moved_at = asyncio.get_running_loop().time()
                        outbox.waiting.append(parcel)
                        outbox.sizes.append((source, size))
                        outbox.by_source[source] += size
                        outbox.changed.set()
                        return ""
                    self._freed.clear()
                    await self._freed.wait()
        except asyncio.TimeoutError:
            self._end_stalled()
            return "it takes its messages too slowly"
        return NOT_CONNECTED

    def _end_stalled(self) -> None:
        """End the streams of nodes that have taken nothing for LOST_AFTER_S: others need the room."""
        since = asyncio.get_running_loop().time() - LOST_AFTER_S
        for node, outbox in [*self._outboxes.items()]:
            if outbox.waiting and outbox.moved_at <= since:
                self.close(node, outbox)

    def _may_tell(self, source: str) -> bool:
        """Whether another word about a lost line would leave a sender's stream open."""
        outbox = self._outboxes.get(source)
        return outbox is not None and max(outbox.words, len(self._lost.get(source, ()))) < LINES_MAX

    def _tell_gone(self, source: str, target: str, why: str) -> None:
        """Tell a sender that a line is lost. Raises CallRefused if too many are."""
        outbox = self._outboxes.get(source)
        if outbox is None:
            return  # its stream has just ended
        self._lost[source].add(target)
        if len(self._lost[source]) > LINES_MAX:
            raise CallRefused(FLOOD)
        if outbox.words >= LINES_MAX:
            raise CallRefused(UNREAD)
        outbox.words += 1
        outbox.waiting.append(pb.Parcel(node=bytes.fromhex(target), gone=why))
        outbox.sizes.append(("", 0))
        outbox.changed.set()

    def _free(self) -> None:
        self._freed.set()


async def relay_parcels(
    relay: Relay,
    member: Member,
    parcels: AsyncIterator[pb.Parcel],
    counts: NodeCounts,
) -> AsyncIterator[pb.Parcel]:
    """Serve one stream of a node. counts: of the node."""
    outbox = relay.open(member.node_id)

    async def take() -> None:
        try:
            await relay.take(member, parcels, counts)
        finally:
            relay.close(member.node_id, outbox)  # so that the stream ends

    taking = asyncio.ensure_future(take())
    try:
        async for parcel in relay.parcels(outbox):
            if member.expelled is not None:
                return
            size = parcel.ByteSize()
            counts.relay_down += size
            counts.bytes_down += size
            yield parcel
        if taking.done():
            taking.result()
    finally:
        taking.cancel()
        relay.close(member.node_id, outbox)
