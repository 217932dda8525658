"""The node's end of the wire: calls to the coordinator, in words of the node, with every size bounded."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from thinwire_node.state import Head
from thinwire_proto import service_pb2 as pb
from thinwire_proto.codec import Update, decode_update, update_bytes_max
from thinwire_proto.contract import Contract
from thinwire_proto.corpus import packed_bytes_max
from thinwire_proto.errors import RemoteError, ReplicaError
from thinwire_proto.parts import MESSAGE_BYTES_MAX, Assembly, split
from thinwire_proto.rows import Row, parse_row
from thinwire_proto.service_pb2_grpc import SwarmStub
from thinwire_proto.tiles import TileLayout

Reply = TypeVar("Reply")

PROTOCOL = 1
SNAPSHOT_HEAD_BYTES_MAX = 1 << 20
CALL_TIMEOUT_S = 30.0
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # HTTP/2 pings: a coordinator whose machine is gone is noticed within 15 s
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
LOST = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.NOT_FOUND,  # of the session: the coordinator was started anew
        grpc.StatusCode.RESOURCE_EXHAUSTED,  # too many calls at once: a passing thing
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
    }
)


class LinkLost(RemoteError):
    """The connection or the session is gone: connect and join again."""


class Refused(RemoteError):
    """The coordinator refuses this node, for a reason that trying again does not mend."""


@dataclass(frozen=True)
class SealedUpdate:
    row: Row
    update: Update


class Link:
    """One connection to the coordinator. Every call raises LinkLost or Refused where gRPC fails."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = SwarmStub(self._channel)
        self._session = ""
        self.bytes_up = 0
        self.bytes_down = 0

    async def close(self) -> None:
        await self._channel.close()

    async def join(
        self, contract: Contract | None, node_id: str, name: str, head: Head | None, replica_step: int | None
    ) -> pb.JoinReply:
        """The handshake; the session is kept."""
        request = pb.JoinRequest(
            protocol=PROTOCOL,
            contract=contract.canonical() if contract else b"",
            node_id=node_id,
            name=name,
            head_step=head.step if head else 0,
            head_hash=head.hash if head else b"",
            replica_step=replica_step,
        )
        reply = await _told(self._stub.Join(request, timeout=CALL_TIMEOUT_S))
        self._session = reply.session
        return reply

    async def announcements(self) -> AsyncIterator[pb.Announcement]:
        async for announcement in _stream(self._stub.Attend(pb.AttendRequest(session=self._session))):
            yield announcement

    async def contribute(
        self, header: pb.ContributionHeader, payload: bytes, sent: Callable[[], None] | None = None
    ) -> pb.Receipt:
        """Send a contribution; returns its receipt, when its round is over. `sent` is called when all of it is out."""
        header.session = self._session
        header.payload_bytes = len(payload)

        async def parts() -> AsyncIterator[pb.ContributionPart]:
            first: pb.ContributionHeader | None = header
            for data in split(payload):
                part = pb.ContributionPart(header=first, data=data)
                self.bytes_up += part.ByteSize()
                first = None
                yield part
            if sent is not None:
                sent()

        return await _told(self._stub.Contribute(parts()))

    async def ask_receipt(self, contribution: bytes) -> pb.Receipt:
        request = pb.ReceiptRequest(session=self._session, contribution=contribution)
        return await _told(self._stub.AskReceipt(request))

    async def updates(self, from_step: int, layout: TileLayout) -> AsyncIterator[SealedUpdate]:
        """Updates from a step on, decoded, each checked to be what its row names. Raises PayloadError as well."""
        request = pb.UpdatesRequest(session=self._session, from_step=from_step)
        row: Row | None = None
        assembly: Assembly | None = None
        async for part in _stream(self._stub.Updates(request)):
            self.bytes_down += part.ByteSize()
            if row is None or assembly is None:
                row = parse_row(part.row)
                assembly = Assembly(row.body_bytes, update_bytes_max(layout), "update")
            assembly.add(part.data)
            if assembly.complete:
                body = assembly.whole()
                # off the event loop: for a large model it takes seconds
                update = await asyncio.to_thread(_checked, row, body, layout)
                yield SealedUpdate(row, update)
                row = assembly = None

    async def snapshot(self, path: Path, contract: Contract) -> None:
        """Fetch the newest snapshot into a file."""
        size_max = 4 * TileLayout(contract.parameters).parameters + SNAPSHOT_HEAD_BYTES_MAX
        with path.open("wb") as file:
            await self._fetch(self._stub.Snapshot(pb.SnapshotRequest(session=self._session)), size_max, file.write)

    async def corpus(self, contract: Contract) -> bytes:
        """Fetch the packed corpus; whether it is the right one is for `unpack_corpus` to say."""
        packed = bytearray()
        size_max = packed_bytes_max(contract.data)
        await self._fetch(self._stub.Corpus(pb.CorpusRequest(session=self._session)), size_max, packed.extend)
        return bytes(packed)

    async def _fetch(self, call: Any, size_max: int, take: Callable[[bytes], object]) -> None:
        size: int | None = None
        received = 0
        async for part in _stream(call):
            self.bytes_down += part.ByteSize()
            if size is None:
                size = part.size
            received += len(part.data)
            if size > size_max or received > size:
                raise LinkLost(f"a file of {size} bytes was announced, {received} came, and {size_max} are allowed")
            take(part.data)
        if received != size:
            raise LinkLost(f"a file broke off after {received} of {size or 0} bytes")


def _checked(row: Row, body: bytes, layout: TileLayout) -> Update:
    if hashlib.sha256(body).digest() != row.body_hash:
        raise ReplicaError(f"the body of step {row.step} is not the one that its row names")
    return decode_update(body, layout)


async def _told(call: Awaitable[Reply]) -> Reply:
    """The answer of a unary call."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise _plain(error) from None


async def _stream(call: Any) -> AsyncIterator[Any]:
    try:
        async for message in call:
            yield message
    except grpc.aio.AioRpcError as error:
        raise _plain(error) from None
    finally:
        call.cancel()
    if call.cancelled():
        raise LinkLost("the call was cancelled")


def _plain(error: grpc.aio.AioRpcError) -> RemoteError:
    text = error.details() or error.code().name.lower()
    return LinkLost(text) if error.code() in LOST else Refused(text)
