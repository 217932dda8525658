"""The gRPC service: translates calls into calls of the swarm, and refuses nodes that may not join."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import grpc
from grpc.aio import ServicerContext as Context

from thinwire_coordinator.gossip.calls import GossipCalls
from thinwire_coordinator.gossip.relay import Relay, relay_parcels
from thinwire_coordinator.gossip.run import GossipRun
from thinwire_coordinator.hall.access.address_groups import group_of
from thinwire_coordinator.hall.access.admission import AdmissionRules, Caller, network_of
from thinwire_coordinator.hall.access.bounds import Bounds
from thinwire_coordinator.hall.access.door import NONCE_BYTES, Candidate, Door
from thinwire_coordinator.hall.access.organizer import proves_organizer
from thinwire_coordinator.hall.access.refusals import Denied, DoorReason
from thinwire_coordinator.hall.counts import NodeCounts
from thinwire_coordinator.hall.events import Fetched, JoinRefused, UpdateSent
from thinwire_coordinator.hall.ledger.retention import NotKept
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.hall.places import IDLE_ROUNDS
from thinwire_coordinator.hall.refusal_log import RefusalLog
from thinwire_coordinator.hall.rpc import messages
from thinwire_coordinator.hall.rpc.calls import (
    NO_SESSION,
    REFUSAL_LENGTH_MAX,
    CallRefused,
    deny,
    host_of,
    organizer_of,
    peer_of,
    refuse,
    session_of,
)
from thinwire_coordinator.hall.rpc.file_parts import PartSizes
from thinwire_coordinator.hall.rpc.memory_bound import FILE_PARTS_MAX
from thinwire_coordinator.hall.rpc.other_run import other_run
from thinwire_coordinator.hall.rpc.request_bounds import join_too_large
from thinwire_coordinator.hall.rpc.traffic import SERVICE
from thinwire_coordinator.hall.served_blobs import ServedBlobs
from thinwire_coordinator.hall.swarm import Swarm
from thinwire_coordinator.hall.whole_run import WholeRun
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.star.feed import NotWanted
from thinwire_proto.clean_text import clean_name
from thinwire_proto.errors import ContractError, LedgerError
from thinwire_proto.identity.keys import PublicKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.negotiation import ABILITIES, choose
from thinwire_proto.wire.service_pb2_grpc import add_SwarmServicer_to_server

HASH_BYTES = 32
FULL = (
    "the swarm is full, with {} nodes; a place becomes free when a node leaves, or when nothing of it was counted in "
    f"{IDLE_ROUNDS} rounds"
)
log = logging.getLogger("thinwire.coordinator")


def add_service(service: Service, server: grpc.aio.Server) -> None:
    """Register all calls, with our own handler for Updates, whose messages are already serialized.

    gRPC uses the first of two generic handlers for a method, and the second of two registered ones. So ours is added
    before protobuf's as a generic handler, and after it as a registered one.
    """
    updates = grpc.unary_stream_rpc_method_handler(
        service.Updates, request_deserializer=pb.UpdatesRequest.FromString, response_serializer=bytes
    )
    ours = {"Updates": updates}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, ours),))
    add_SwarmServicer_to_server(service, server)
    server.add_registered_method_handlers(SERVICE, ours)


class Service(GossipCalls):
    """See service.proto for what each call means."""

    def __init__(
        self,
        swarm: Swarm,
        door: Door,
        rules: AdmissionRules | None = None,
        peer: Callable[[Context[Any, Any]], str] = peer_of,
        gossip: GossipRun | None = None,
        whole_run: Callable[[], WholeRun | None] = lambda: None,
    ) -> None:
        self._whole_run = whole_run
        self._gossip = gossip
        self._peer = peer
        self._swarm = swarm
        self._door = door
        self._rules = rules or AdmissionRules(Bounds(swarm.view.contract.round.nodes_max))
        self._file_parts = asyncio.Semaphore(FILE_PARTS_MAX)
        self._refusals = RefusalLog(swarm.driver.now)
        self._blobs = ServedBlobs(swarm.state.blobs.folder)
        self._relay = Relay() if swarm.view.contract.exchange.kind == "gossip" else None

    async def Hello(self, request: pb.HelloRequest, context: Context[Any, Any]) -> pb.HelloReply:
        if len(request.nonce) != NONCE_BYTES:
            text = f"the nonce must have {NONCE_BYTES} bytes"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        greeting = self._door.greet(request.nonce)
        return pb.HelloReply(public_key=greeting.public_key, challenge=greeting.challenge, signature=greeting.signature)

    async def Join(self, request: pb.JoinRequest, context: Context[Any, Any]) -> pb.JoinReply:
        try:
            protocol = choose(request.protocol, request.protocol_oldest)
        except ContractError as error:
            await refuse(context, str(error))
        if too_large := join_too_large(request):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, too_large)
        key, name, peer = PublicKey(request.public_key), clean_name(request.name), self._peer(context)
        caller = Caller(network_of(peer))
        known = key.node_id in self._swarm.members.by_id
        if denied := self._rules.join(caller, known, self._swarm.view.now):
            raise CallRefused(denied)
        candidate = Candidate(key, request.token, name, host_of(peer))
        denied = await self._door.check(candidate, request.challenge, request.signature)
        if denied is not None:
            self._rules.join_failed(caller, self._swarm.view.now)
            self._note_refusal(key.node_id, denied)
            raise CallRefused(denied)
        await self._compare_contracts(request, context)
        await self._compare_heads(request, context)
        group, has_counted = group_of(candidate.address), await self._swarm.has_counted(key.node_id)
        joined = self._swarm.members.join(key, name)
        if joined is None and self._swarm.make_place(key.node_id, group, has_counted=has_counted):
            joined = self._swarm.members.join(key, name)
        if joined is None:
            full = Denied(DoorReason.FULL, FULL.format(self._swarm.members.nodes_max))
            self._note_refusal(key.node_id, full)
            await deny(context, full)
        member, secret = joined
        self._swarm.places.came(member, group, has_counted=has_counted)
        self._swarm.observer.joined(member.node_id, group)
        member.abilities = ABILITIES[protocol]
        momentum, replica_step = messages.offered_momentum(request), messages.replica_step(request)
        decision = await (self._gossip.beats if self._gossip else self._swarm).join(member, momentum, replica_step)
        return messages.join_reply(decision, self._swarm.view.contract.written, secret, protocol)

    def _note_refusal(self, node_id: str, denied: Denied) -> None:
        self._swarm.events.tell(JoinRefused(node_id, denied.reason))
        self._refusals.note(node_id, denied)

    async def Leave(self, request: pb.LeaveRequest, context: Context[Any, Any]) -> pb.LeaveReply:
        member = await self._member(context)
        _check_signed(member, messages.leave_statement(request, member.session), request.signature)
        (self._gossip.beats if self._gossip else self._swarm).leave(member, messages.trained_through(request))
        return pb.LeaveReply()

    async def Probe(self, request: pb.ProbeRequest, context: Context[Any, Any]) -> pb.ProbeReply:
        received_us = self._swarm.now_us()
        await self._member(context)
        answered_us = self._swarm.now_us()
        return pb.ProbeReply(term=self._swarm.view.term.number, received_us=received_us, answered_us=answered_us)

    async def Attend(self, request: pb.AttendRequest, context: Context[Any, Any]) -> AsyncIterator[pb.Announcement]:
        member = await self._member(context)
        self._with_centre("Attend")
        async with _one_at_a_time(member, "Attend", context), aclosing(self._swarm.attend(member)) as announcements:
            async for announcement in announcements:
                yield messages.announcement(announcement)
        _check_expelled(member)

    async def Contribute(
        self, request_iterator: AsyncIterator[pb.ContributionPart], context: Context[Any, Any]
    ) -> pb.Receipt:
        parts = aiter(request_iterator)
        first = await anext(parts, pb.ContributionPart())
        member = await self._member(context)
        self._with_centre("Contribute")
        if denied := self._rules.contribution(member.node_id, self._swarm.view.round_number):
            raise CallRefused(denied)
        counts = self._counts(member)
        counts.bytes_up += first.ByteSize()  # even if the header is refused and no other part is read
        claim = messages.claim(first.header, member.session)
        return messages.receipt(await self._swarm.contribute(member, claim, _payload(counts, first, parts)))

    async def AskReceipt(self, request: pb.ReceiptRequest, context: Context[Any, Any]) -> pb.Receipt:
        await self._member(context)
        return messages.receipt(await self._swarm.ask_receipt(request.contribution))

    async def Updates(  # type: ignore[override]
        self, request: pb.UpdatesRequest, context: Context[Any, Any]
    ) -> AsyncIterator[bytes]:
        """Stream messages that are already serialized, once for all followers; see `add_service`."""
        member = await self._member(context)
        self._with_centre("Updates")
        step = request.from_step
        if step > self._swarm.feed.step:
            await refuse(context, f"there is no step {step} yet: the ledger ends at step {self._swarm.feed.step}")
        follows = step == self._swarm.feed.step  # otherwise the node has to catch up first
        async with _one_at_a_time(member, "Updates", context):
            while True:
                try:
                    async with self._swarm.feed.lend(step, lambda: member.expelled) as loan:
                        for part in loan.update.parts(self._swarm.feed.step):
                            self._counts(member).bytes_down += len(part)
                            yield part
                            if not loan.may_stay():
                                text = "this node takes updates too slowly, and others need the memory; connect again"
                                raise CallRefused(Denied(DoorReason.SLOW, text))
                except NotKept as error:
                    await context.abort(grpc.StatusCode.NOT_FOUND, str(error))  # it joins again for a snapshot
                except NotWanted:
                    break
                del loan, part  # otherwise they stay in memory while this waits for the next update
                step += 1
                if step == self._swarm.feed.step:
                    if follows:
                        after_s = self._swarm.view.now - self._swarm.view.sealed_at
                        self._swarm.events.tell(UpdateSent(member.node_id, step - 1, after_s))
                    follows = True
        _check_expelled(member)

    async def Snapshot(self, request: pb.SnapshotRequest, context: Context[Any, Any]) -> AsyncIterator[pb.FilePart]:
        member = await self._member(context)
        step = self._swarm.state.snapshot_steps()[-1]
        path, offset = self._swarm.state.snapshot_path(step), request.offset if request.step == step else 0
        await _check_offset(path, offset, f"the snapshot of step {step}", context)
        self._swarm.events.tell(Fetched(member.node_id, "snapshot"))
        async with _one_at_a_time(member, "Snapshot", context):
            async for part in self._file(member, path, step, offset):
                yield part
        _check_expelled(member)

    async def Corpus(self, request: pb.CorpusRequest, context: Context[Any, Any]) -> AsyncIterator[pb.FilePart]:
        member = await self._member(context)
        self._swarm.events.tell(Fetched(member.node_id, "corpus"))
        async with _one_at_a_time(member, "Corpus", context):
            async for part in self._file(member, self._swarm.state.folder / "corpus.zst"):
                yield part
        _check_expelled(member)

    async def Blob(self, request: pb.BlobRequest, context: Context[Any, Any]) -> AsyncIterator[pb.FilePart]:
        member = await self._member(context)
        if len(request.hash) != HASH_BYTES:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the name of a blob has {HASH_BYTES} bytes")
        path, problem = await self._blobs.find(request.hash.hex())
        if problem:
            await context.abort(grpc.StatusCode.DATA_LOSS, problem)  # NOT_FOUND means an unknown session
        await _check_offset(path, request.offset, f"the blob {request.hash.hex()[:16]}…", context)
        self._swarm.events.tell(Fetched(member.node_id, "blob"))
        async with _one_at_a_time(member, "Blob", context):
            async for part in self._file(member, path, offset=request.offset):
                yield part
        _check_expelled(member)

    async def _file(self, member: Member, path: Path, step: int = 0, offset: int = 0) -> AsyncIterator[pb.FilePart]:
        """The parts of a file from `offset` on: at least one, even if no bytes are left."""
        with path.open("rb") as file:
            size = (await asyncio.to_thread(path.stat)).st_size
            file.seek(offset)
            part = pb.FilePart(size=size, step=step, offset=offset)
            sizes, now = PartSizes(), asyncio.get_running_loop().time
            while member.expelled is None:
                async with self._file_parts:
                    part.data = await asyncio.to_thread(file.read, sizes.bytes)
                    if not part.data and not part.size:
                        return
                    self._counts(member).bytes_fetched += part.ByteSize()
                    began = now()
                    yield part
                    sizes.took(now() - began)
                    part = pb.FilePart()

    async def Relay(
        self, request_iterator: AsyncIterator[pb.Parcel], context: Context[Any, Any]
    ) -> AsyncIterator[pb.Parcel]:
        member = await self._member(context)
        async with _one_at_a_time(member, "Relay", context):
            async for parcel in relay_parcels(self._relay, member, request_iterator, context, self._counts(member)):
                yield parcel
        _check_expelled(member)

    async def Evaluated(self, request: pb.EvaluatedRequest, context: Context[Any, Any]) -> pb.EvaluatedReply:
        member = await self._member(context)
        _check_signed(member, messages.evaluated_statement(request, member.session), request.signature)
        taker = self._swarm.evaluations if self._gossip is None else self._gossip.held_out
        refusal = taker.answered(member.node_id, messages.part(request.part), request.loss)
        if refusal:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, refusal[:REFUSAL_LENGTH_MAX])
        return pb.EvaluatedReply()

    async def Status(self, request: pb.StatusRequest, context: Context[Any, Any]) -> pb.StatusReply:
        swarm, view = self._swarm, self._swarm.view
        in_full = proves_organizer(organizer_of(context), self._door.key.public, time.time())
        # not for strangers: it keeps the replica from the round for a pass over the parameters
        is_known = in_full or self._swarm.members.of_secret(session_of(context)) is not None
        step, fingerprint = await swarm.own_fingerprint() if request.fingerprint and is_known else (view.step, None)
        if view.gossip is not None:
            step = view.step  # the replica is the first state or the mean, and its step a row
        recorded = await swarm.workers.submit(Job.READ_STATUS, swarm.state.watch_ledger.recorded)
        return messages.status(view, recorded, self._whole_run(), step, fingerprint, in_full=in_full)

    def _counts(self, member: Member) -> NodeCounts:
        return self._swarm.view.counts.of(member.node_id)

    async def _member(self, context: Context[Any, Any]) -> Member:
        member = self._swarm.members.of_secret(session_of(context))
        if member is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, NO_SESSION)
        return member

    async def _compare_contracts(self, request: pb.JoinRequest, context: Context[Any, Any]) -> None:
        ours = self._swarm.view.contract
        if request.contract in (b"", ours.written):
            return
        await refuse(
            context, await self._swarm.workers.submit(Job.COMPARE_CONTRACTS, other_run, ours, request.contract)
        )

    async def _compare_heads(self, request: pb.JoinRequest, context: Context[Any, Any]) -> None:
        """Refuse a node whose newest row is not in this ledger: the ledger has lost rows, or is another lineage."""
        if request.head_step == 0:
            return
        sealed = self._swarm.feed.step
        if request.head_step > sealed:
            text = (
                f"this coordinator's ledger ends at step {sealed}, but the node has seen step {request.head_step} "
                "sealed: the ledger has lost rows, and the organizer has to restore its newest copy"
            )
            self._refuse_head(request, text)
        try:
            row = await self._swarm.workers.submit(
                Job.READ_ROW, self._swarm.state.reading_ledger.row, request.head_step - 1
            )
        except LedgerError as error:
            log.error("cannot read the row that a joining node names: %s", error)
            await refuse(context, "the coordinator cannot read its own ledger; tell the organizer, whose log says why")
        if row.hash != request.head_hash:
            text = (
                f"the node's row for step {request.head_step} differs from the one in this ledger: "
                "they are two lineages; start the node with another --state-dir to take part in this one"
            )
            self._refuse_head(request, text)

    def _refuse_head(self, request: pb.JoinRequest, text: str) -> NoReturn:
        """Tell the organizer too, because only a newer copy of the ledger helps."""
        denied = Denied(DoorReason.OTHER_LEDGER, text)
        self._note_refusal(PublicKey(request.public_key).node_id, denied)
        raise CallRefused(denied)


async def _check_offset(path: Path, offset: int, what: str, context: Context[Any, Any]) -> None:
    """Refuse an offset beyond the file's end. The end is valid: a node may have died between last byte and rename."""
    size = (await asyncio.to_thread(path.stat)).st_size
    if offset > size:
        text = f"{what} has {size} bytes, but byte {offset} was requested; fetch it again"
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, text)


async def _payload(
    counts: NodeCounts, first: pb.ContributionPart, parts: AsyncIterator[pb.ContributionPart]
) -> AsyncIterator[bytes]:
    """The payload in parts. Messages after the first are counted as they are read."""
    yield first.data
    async for part in parts:
        counts.bytes_up += part.ByteSize()
        yield part.data


def _check_signed(member: Member, statement: bytes, signature: bytes) -> None:
    """Refuse what the node's key has not signed: a session's secret alone must not speak for the node."""
    if not member.public_key.verifies(signature, statement):
        raise CallRefused(Denied(DoorReason.BAD_SIGNATURE, "this is not signed by the key of the node"))


def _check_expelled(member: Member) -> None:
    """Say why, if a stream ends because the coordinator has ended the session."""
    if member.expelled is not None:
        raise CallRefused(member.expelled)


@asynccontextmanager
async def _one_at_a_time(member: Member, call: str, context: Context[Any, Any]) -> AsyncIterator[None]:
    """Allow a session only one open call of each kind, so that it cannot exhaust shared resources."""
    calls = member.calls  # belongs to this session; the next session gets a new set
    if call in calls:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"one {call} at a time in a session")
    calls.add(call)
    try:
        yield
    finally:
        calls.discard(call)
