"""The node's end of the wire: gRPC calls to the coordinator, with every size bounded."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from thinwire_common import heartbeat
from thinwire_node.exchange.coordinator import messages
from thinwire_node.exchange.coordinator.answers import messages_of, reply_of
from thinwire_node.exchange.coordinator.clock import ProbedClock
from thinwire_node.exchange.coordinator.dial import NONCE_BYTES, check_coordinator, dial, prove
from thinwire_node.exchange.coordinator.traffic import CountedChannel, Pace
from thinwire_node.exchange.port import (
    Admission,
    Applicant,
    EvaluationPart,
    LinkLost,
    NotGenuine,
    Refused,
    SealedUpdate,
    Surroundings,
)
from thinwire_node.runtime import Clocks
from thinwire_node.storage.state import PartialSnapshot
from thinwire_proto import limits
from thinwire_proto.blobs import Blob
from thinwire_proto.clean_text import clean_text
from thinwire_proto.contract import Contract, DemoSpec
from thinwire_proto.errors import ContractError, PayloadError, ReplicaError
from thinwire_proto.exact.amendments import amended_by, amendments_in, contract_at
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.topk import check_update_topk
from thinwire_proto.exact.update import Update
from thinwire_proto.identity import statements
from thinwire_proto.identity.invite import Invite
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.limits import probe_every_s
from thinwire_proto.task import data_kind_of
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.codec import decode_update, update_bytes_max
from thinwire_proto.wire.metadata import SESSION
from thinwire_proto.wire.negotiation import OLDEST_SPOKEN, PROTOCOL, check_chosen
from thinwire_proto.wire.parts import MESSAGE_BYTES_MAX, Assembly, split_for_upload
from thinwire_proto.wire.rows import Row, parse_row
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

Header = TypeVar("Header")
Part = TypeVar("Part")
Opened = TypeVar("Opened", bound="Link")
Metadata = tuple[tuple[str, str], ...]

SNAPSHOT_HEAD_BYTES_MAX = 1 << 20
MOMENT_HEAD_BYTES_MAX = 512
"""Size of a moment's entry in a snapshot's head: its name, and its place in the file."""
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    *heartbeat.CLIENT_OPTIONS,
    ("grpc.max_reconnect_backoff_ms", round(limits.RECONNECT_MAX_S * 1000)),
)
THIN_LINE_BYTES = 32 << 10
THIN_LINE_OPTIONS = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", THIN_LINE_BYTES))
"""For a node whose line is thin. The answer to a ping waits behind a download, or its acknowledgements on the way up,
for so long that the connection counts as lost, and gRPC's window would grow with that delay. So many bytes take 4 s at
64 kbit/s."""


class Link:
    """One connection to the coordinator: `thinwire_node.exchange.port.Entrance`, and the calls of all exchanges. A gRPC
    failure raises LinkLost or Refused.

    stub: the gRPC stub. close: closes the connection. invite: names the coordinator, and the token to enrol with;
    without one, any coordinator is taken. heard_of_standby: see `Surroundings`."""

    def __init__(
        self,
        stub: Any,
        close: Callable[[], Awaitable[None]],
        clocks: Clocks,
        invite: Invite | None = None,
        heard_of_standby: Callable[[str], None] = lambda address: None,
    ) -> None:
        self._stub = stub
        self._close = close
        self._clocks = clocks
        self._invite = invite
        self._heard_of_standby = heard_of_standby
        self._clock: ProbedClock | None = None
        self._pace = Pace()
        self._metadata: Metadata = ()
        self._signer: tuple[SecretKey, bytes] | None = None  # the node's key and its session; None before `join`
        self.coordinator: PublicKey | None = None
        """The coordinator's key. Available after `join`."""

    @classmethod
    async def open(cls: type[Opened], surroundings: Surroundings) -> Opened:
        """Open a gRPC link; see `dial`."""
        around, traffic = surroundings, surroundings.traffic
        options = CHANNEL_OPTIONS + (THIN_LINE_OPTIONS if around.thin_line else ())
        dialled = await dial(around.address, around.invite, options, around.throttle)
        traffic.connecting_to(dialled.port)

        async def close() -> None:
            traffic.look()  # the kernel drops a connection's counters when it closes
            await dialled.close()

        counted: Any = CountedChannel(dialled.channel, traffic)  # a stub needs only these methods
        return cls(SwarmStub(counted), close, around.clocks, around.invite, around.heard_of_standby)

    async def close(self) -> None:
        await self._close()

    @property
    def clock(self) -> ProbedClock:
        assert self._clock is not None
        return self._clock

    async def join(self, applicant: Applicant) -> Admission:
        """Join the swarm. The link keeps the session's secret for later calls."""
        key, contract, head, invite = applicant.key, applicant.contract, applicant.head, self._invite
        nonce = secrets.token_bytes(NONCE_BYTES)
        hello = self._stub.Hello(pb.HelloRequest(nonce=nonce), timeout=limits.CALL_S)
        greeting = messages.greeting(await reply_of(hello))
        self.coordinator = check_coordinator(invite, nonce, greeting)
        request = pb.JoinRequest(
            protocol=PROTOCOL,
            protocol_oldest=OLDEST_SPOKEN,
            **prove(key, invite.token if invite else b"", greeting),
            contract=contract.written if contract else b"",
            name=applicant.name,
            head_step=head.step if head else 0,
            head_hash=head.hash if head else b"",
            replica_step=applicant.replica_step,
            momentum=messages.momentum_message(applicant.momentum),
            term=applicant.term.number,
            term_signature=applicant.term.signature,
        )
        reply: pb.JoinReply = await reply_of(self._stub.Join(request, timeout=limits.CALL_S))
        try:
            check_chosen(reply.protocol)
        except ContractError as error:
            raise Refused(str(error)) from None
        secret = messages.session_secret(reply)
        self._metadata = ((SESSION, secret),)
        self._signer = key, statements.session_of(secret)
        admission = messages.admission(reply)
        if admission.term.number and not admission.term.proves(self.coordinator, admission.contract.hash):
            raise PayloadError("the coordinator claims a promotion that its key has not signed")
        self._clock = ProbedClock(self.probe, self._clocks, probe_every_s(admission.contract.round.length_s))
        return admission

    async def announcements(self) -> AsyncGenerator[pb.Announcement, None]:
        async for announcement in messages_of(self._stub.Attend(pb.AttendRequest(), metadata=self._metadata)):
            yield announcement
            await self._pace.wait()

    async def contribute(self, header: pb.ContributionHeader, payload: bytes) -> pb.Receipt:
        """Send a contribution and wait for its receipt, which comes when the round is over."""
        header.payload_bytes = len(payload)
        if header.samples:
            self._pace.earn()
        parts = _split(pb.ContributionPart, header, payload)
        return await reply_of(self._stub.Contribute(parts, metadata=self._metadata))

    async def probe(self) -> pb.ProbeReply:
        return await reply_of(self._stub.Probe(pb.ProbeRequest(), timeout=limits.CALL_S, metadata=self._metadata))

    async def leave(self, trained_through: int | None) -> None:
        key, session = self.joined_as()
        signature = key.sign(statements.leave(session, trained_through))
        request = pb.LeaveRequest(trained_through=trained_through, signature=signature)
        await reply_of(self._stub.Leave(request, timeout=limits.ROUND_TRIP_MAX_S, metadata=self._metadata))

    def joined_as(self) -> tuple[SecretKey, bytes]:
        """The key and the session that statements are signed with."""
        assert self._signer is not None, "join first"
        return self._signer

    async def ask_receipt(self, contribution: bytes) -> pb.Receipt:
        request = pb.ReceiptRequest(contribution=contribution)
        return await reply_of(self._stub.AskReceipt(request, metadata=self._metadata))

    async def evaluated(self, part: EvaluationPart, loss: float) -> None:
        where = (part.step, part.name, part.start, part.count, part.spread)
        key, session = self.joined_as()
        signature = key.sign(statements.evaluated(session, *where, loss))
        request = pb.EvaluatedRequest(part=messages.evaluation_part(part), loss=loss, signature=signature)
        await reply_of(self._stub.Evaluated(request, timeout=limits.CALL_S, metadata=self._metadata))

    async def send_beat(self, report: pb.BeatRequest) -> pb.BeatReply:
        return await reply_of(self._stub.Beat(report, timeout=limits.CALL_S, metadata=self._metadata))

    async def open_relay(self, parcels: AsyncIterator[pb.Parcel]) -> AsyncGenerator[pb.Parcel, None]:
        pace = Pace()
        async for parcel in messages_of(self._stub.Relay(parcels, metadata=self._metadata)):
            yield parcel
            if not parcel.data:  # parts of messages are bounded by the contract, and the line's speed
                await pace.wait()

    async def send_deposit(self, header: pb.DepositHeader, body: bytes) -> str:
        """Send parameters in parts. Returns why they are refused, or nothing."""
        parts = _split(pb.DepositPart, header, body)
        reply: pb.DepositReply = await reply_of(self._stub.Deposit(parts, metadata=self._metadata))
        return clean_text(reply.refused)

    async def sealed_updates(self, replica: Replica, contract: Contract) -> AsyncGenerator[SealedUpdate, None]:
        """Yield updates from the replica's step on, decoded, and checked against their rows and the coordinator's
        signatures. contract: with all amendments that are known. May also raise NotGenuine, PayloadError or
        ReplicaError."""
        assert self.coordinator is not None
        layout = replica.layout
        request = pb.UpdatesRequest(from_step=replica.step)
        row: Row | None = None
        head_step, signature = 0, b""
        assembly: Assembly | None = None
        async for part in messages_of(self._stub.Updates(request, metadata=self._metadata)):
            if row is not None and part.row:
                raise PayloadError(f"the update of step {row.step} is incomplete, and another one begins")
            if row is None or assembly is None:
                row, head_step, signature = parse_row(part.row), part.head_step, part.signature
                contract = _with_row(contract, row)
                demo = contract_at(contract, row.step).demo
                messages.check_number("number of sealed steps", head_step, contract.schedule.steps)
                most = update_bytes_max(layout, demo.magnitude, demo.update_levels)
                assembly = Assembly(row.body_bytes, most, "update")
            assembly.add(part.data)
            if assembly.complete:
                body = assembly.whole()
                # in a thread, since decoding takes seconds for a large model
                update = await asyncio.to_thread(_checked, self.coordinator, signature, row, body, layout, demo)
                yield SealedUpdate(row, update, len(body), head_step)
                row = assembly = None

    async def snapshot(self, folder: Path, contract: Contract, begun: PartialSnapshot | None) -> Path:
        step, offset = (begun.step, begun.size) if begun else (0, 0)
        size_max = 4 * contract.state_elements + SNAPSHOT_HEAD_BYTES_MAX
        size_max += MOMENT_HEAD_BYTES_MAX * len(contract.moments)
        request = pb.SnapshotRequest(step=step, offset=offset)
        path: Path | None = None
        with contextlib.ExitStack() as opened:
            call = self._stub.Snapshot(request, metadata=self._metadata)
            async for part, first in self._parts(call, size_max, (0, offset)):
                if first is not None:
                    path = folder / f"snapshot-{first.step}.part"
                    goes_on = first.offset > 0
                    if goes_on and first.step != step:
                        raise PayloadError(f"the snapshot of step {first.step} begins at byte {first.offset}")
                    if begun is not None and not goes_on:
                        begun.path.unlink(missing_ok=True)
                    file = opened.enter_context(path.open("ab" if goes_on else "wb"))
                file.write(part)
        if path is None:
            raise LinkLost("the coordinator sent no snapshot")
        return path

    async def corpus(self, contract: Contract, path: Path) -> None:
        offset = await asyncio.to_thread(_size_of, path)
        call = self._stub.Corpus(pb.CorpusRequest(offset=offset), metadata=self._metadata)
        size_max = data_kind_of(contract.data).file_bytes_max(contract.data)
        with path.open("ab") as file:
            async for part, first in self._parts(call, size_max, (0, offset)):
                if first is not None and first.offset == 0:
                    file.truncate(0)  # an older coordinator sends all of it
                await asyncio.to_thread(file.write, part)

    async def blob(self, blob: Blob, path: Path) -> None:
        offset = await asyncio.to_thread(_size_of, path)
        request = pb.BlobRequest(hash=bytes.fromhex(blob.hash), offset=offset)
        with path.open("ab") as file:
            call = self._stub.Blob(request, metadata=self._metadata)
            async for part, _ in self._parts(call, blob.size, (offset,)):
                await asyncio.to_thread(file.write, part)

    async def _parts(
        self, call: Any, size_max: int, begins: tuple[int, ...] = (0,)
    ) -> AsyncIterator[tuple[bytes, pb.FilePart | None]]:
        """Yield a file part by part; the first part comes with its message. Raises LinkLost if the file is incomplete,
        and PayloadError if it is too large, or if its parts are not in order.

        begins: the offsets at which the caller can take the file up."""
        size: int | None = None
        received = 0
        async for part in messages_of(call):
            first = part if size is None else None
            if first is not None:
                size, received = first.size, first.offset
                if received not in begins:
                    raise PayloadError(f"a file begins at byte {received}; asked for: {' or '.join(map(str, begins))}")
            elif not part.data or part.size or part.offset or part.step:
                raise PayloadError(f"a file's parts are not in order: after {received} bytes, another file begins")
            assert size is not None
            received += len(part.data)
            if size > size_max or received > size:
                raise PayloadError(
                    f"a file is too large: {size} bytes announced, {received} received, {size_max} allowed"
                )
            yield part.data, first
        if received != size:
            raise LinkLost(f"a file broke off after {received} of {size or 0} bytes")


async def _split(part: Callable[..., Part], header: Header, data: bytes) -> AsyncIterator[Part]:
    """The parts of a message. The first has the header."""
    first: Header | None = header
    for one in split_for_upload(data):
        yield part(header=first, data=one)
        first = None


def _with_row(contract: Contract, row: Row) -> Contract:
    """The contract with the amendments of a row, unless it has them. Raises PayloadError."""
    known = [amendment.written for amendment in contract.amendments if amendment.step == row.step]
    try:
        begins = amendments_in(row.extras)
        return contract if begins == known else amended_by(contract, begins)
    except ContractError as error:
        raise PayloadError(f"the row of step {row.step}: {clean_text(str(error))}") from None


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _checked(
    coordinator: PublicKey, signature: bytes, row: Row, body: bytes, layout: TileLayout, demo: DemoSpec
) -> Update:
    if not _is_genuine(coordinator, signature, row.hash):
        what = "is not signed by this coordinator's key" if signature else "is not signed"
        raise NotGenuine(f"the row of step {row.step} {what}")
    if hashlib.sha256(body).digest() != row.body_hash:
        raise ReplicaError(f"the body of step {row.step} does not match the hash in its row")
    return _decoded(body, layout, demo)


@lru_cache(maxsize=8)  # a thousand simulated nodes in one process check the same rows
def _is_genuine(coordinator: PublicKey, signature: bytes, row_hash: bytes) -> bool:
    return coordinator.verifies(signature, statements.row(row_hash))


@lru_cache(maxsize=2)  # and decode the same bytes
def _decoded(body: bytes, layout: TileLayout, demo: DemoSpec) -> Update:
    update = decode_update(body, layout, demo.magnitude, demo.update_levels)
    check_update_topk(update.merged, layout, demo.update_topk)
    return update
