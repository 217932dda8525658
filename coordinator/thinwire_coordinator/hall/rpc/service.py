"""The gRPC service: translates calls into calls of the swarm, and refuses nodes that may not join."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import grpc
from grpc.aio import ServicerContext as Context

from thinwire_coordinator.hall.access.addresses import group_of
from thinwire_coordinator.hall.access.admission import AdmissionRules, Bounds, Caller
from thinwire_coordinator.hall.access.door import NONCE_BYTES, Candidate, Denied, Door, DoorReason
from thinwire_coordinator.hall.access.organizer import proves_organizer
from thinwire_coordinator.hall.counts import NodeCounts
from thinwire_coordinator.hall.events import Refused
from thinwire_coordinator.hall.members import IDLE_ROUNDS, Member
from thinwire_coordinator.hall.rpc import messages
from thinwire_coordinator.hall.rpc.calls import (
    NO_SESSION,
    REFUSAL_LENGTH_MAX,
    CallRefused,
    RefusalLog,
    deny,
    host_of,
    network_of_peer,
    organizer_of,
    peer_of,
    refuse,
    session_of,
)
from thinwire_coordinator.hall.rpc.examining import Examinations, examine
from thinwire_coordinator.hall.rpc.files import FILE_PARTS_MAX, PartSizes, ServedBlobs
from thinwire_coordinator.hall.rpc.following import follow, give_way_to
from thinwire_coordinator.hall.rpc.messages import other_run
from thinwire_coordinator.hall.rpc.request_bounds import SERVICE, join_too_large
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.view import WholeRun
from thinwire_coordinator.hall.workers import Job
from thinwire_proto.clean_text import clean_name
from thinwire_proto.errors import ContractError, LedgerError
from thinwire_proto.identity.keys import PublicKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.negotiation import choose
from thinwire_proto.wire.service_pb2_grpc import SwarmServicer, add_SwarmServicer_to_server

HASH_BYTES = 32
FULL = (
    "the swarm is full, with {} nodes; a place becomes free when a node leaves, or when nothing of it was counted in "
    f"{IDLE_ROUNDS} rounds"
)
ROWS_LOST = "the rows that it was computed on were lost with the coordinator before the promotion of this one"
log = logging.getLogger("thinwire.coordinator")


def add_service(service: Service, server: grpc.aio.Server) -> None:
    """Register all calls, with our own handlers for streams whose messages are already serialized.

    gRPC uses the first of two generic handlers for a method, and the second of two registered ones. So ours are added
    before protobuf's as generic handlers, and after them as registered ones.
    """
    ours = service.own_handlers() | _of_other_exchanges(service)
    if ours:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, ours),))
    add_SwarmServicer_to_server(service, server)
    if ours:
        server.add_registered_method_handlers(SERVICE, ours)


def _of_other_exchanges(service: Service) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    """Handlers that refuse the calls which only runs of other kinds have."""
    return {
        method.name: _refusing(service, method)
        for method in pb.DESCRIPTOR.services_by_name["Swarm"].methods
        if getattr(type(service), method.name) is getattr(SwarmServicer, method.name)
    }


def _refusing(service: Service, method: Any) -> grpc.RpcMethodHandler[Any, Any]:
    kind = service.run.view.contract.exchange.kind
    text = f"this run's exchange is {kind!r}, which has no call {method.name}; update the node"
    denied = Denied(DoorReason.OTHER_EXCHANGE, text)

    async def refuse_it(requests: AsyncIterator[Any], context: Context[Any, Any]) -> AsyncIterator[bytes]:
        await service.member(context)
        raise CallRefused(denied)
        yield b""

    # on the wire, a call with one message looks like a stream with one
    return grpc.stream_stream_rpc_method_handler(refuse_it, request_deserializer=bytes, response_serializer=bytes)


class Service(SwarmServicer):
    """The calls that runs of all kinds have; each kind adds its own. See service.proto for what each call means."""

    def __init__(
        self,
        run: Run,
        door: Door,
        rules: AdmissionRules | None = None,
        peer: Callable[[Context[Any, Any]], str] = peer_of,
        whole_run: Callable[[str], WholeRun | None] = lambda asked: None,
    ) -> None:
        self._whole_run = whole_run
        self.peer = peer
        self.run = run
        self._door = door
        self.rules = rules or AdmissionRules(Bounds(run.view.contract.round.nodes_max))
        self._file_parts = asyncio.Semaphore(FILE_PARTS_MAX)
        self._examinations = Examinations()
        self._refusals = RefusalLog(run.hall.now)
        self._blobs = ServedBlobs(run.state.blobs.folder)

    def own_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """Handlers of this kind's calls whose messages are already serialized."""
        return {}

    async def Hello(self, request: pb.HelloRequest, context: Context[Any, Any]) -> pb.HelloReply:
        if len(request.nonce) != NONCE_BYTES:
            text = f"the nonce must have {NONCE_BYTES} bytes"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        challenge, signature = self._door.greet(request.nonce)
        return pb.HelloReply(public_key=self._door.key.public.data, challenge=challenge, signature=signature)

    async def Join(self, request: pb.JoinRequest, context: Context[Any, Any]) -> pb.JoinReply:
        try:
            protocol = choose(request.protocol, request.protocol_oldest)
        except ContractError as error:
            await refuse(context, str(error))
        if too_large := join_too_large(request):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, too_large)
        await give_way_to(self.run, request, context)
        key, name, peer = PublicKey(request.public_key), clean_name(request.name), self.peer(context)
        caller = Caller(network_of_peer(peer))
        known = key.node_id in self.run.members.by_id
        if denied := self.rules.join(caller, known, self.run.view.now):
            raise CallRefused(denied)
        candidate = Candidate(key, request.token, name, host_of(peer))
        denied = await self._door.check(candidate, request.challenge, request.signature)
        if denied is not None:
            self.rules.join_failed(caller, self.run.view.now)
            self._note_refusal(key.node_id, denied)
            raise CallRefused(denied)
        if self._goes_on_from(request.contract):  # the node knows a run that this one is a branch of
            request = pb.JoinRequest(protocol=request.protocol, name=request.name)
        await self._compare_contracts(request, context)
        if self.run.keeper is not None and (withheld := self.run.keeper.withheld):
            await context.abort(grpc.StatusCode.UNAVAILABLE, withheld)
        rewound = await self._has_lost_rows(request, context)
        if rewound:
            request = pb.JoinRequest(protocol=request.protocol, name=request.name)
        group, has_counted = group_of(candidate.address), await self.run.hall.has_counted(key.node_id)
        joined = self.run.members.join(key, name)
        if joined is None and self.run.make_place(key.node_id, group, has_counted=has_counted):
            joined = self.run.members.join(key, name)
        if joined is None:
            full = Denied(DoorReason.FULL, FULL.format(self.run.members.nodes_max))
            self._note_refusal(key.node_id, full)
            await deny(context, full)
        member, secret = joined
        self.run.places.came(member, group, has_counted=has_counted)
        self.run.known(member, group)
        momentum, replica_step = messages.offered_momentum(request), messages.replica_step(request)
        decision = await self.run.join(member, momentum, replica_step)
        if rewound:
            decision = replace(decision, take_snapshot=True, drop_momentum=ROWS_LOST, rewound=True)
        self.run.hall.tasks.keep(self._door.joined(candidate))  # no node waits for the disk a second time
        return messages.join_reply(decision, self.run.view.contract, secret, protocol, self.run.hall.proven)

    def _note_refusal(self, node_id: str, denied: Denied) -> None:
        self.run.events.tell(Refused("join", denied.reason))
        self._refusals.note(node_id, denied)

    async def Follow(
        self, request_iterator: AsyncIterator[pb.FollowRequest], context: Context[Any, Any]
    ) -> AsyncIterator[pb.FollowPart]:
        async with aclosing(follow(self.run, self._door, request_iterator, context)) as parts:
            async for part in parts:
                yield part

    async def Examine(
        self, request_iterator: AsyncIterator[pb.ExamineRequest], context: Context[Any, Any]
    ) -> AsyncIterator[pb.ExamineReply]:
        peer, examinations = self.peer(context), self._examinations
        replies = examine(self.run, self._door, self.rules, examinations, request_iterator, peer)
        async with aclosing(replies):
            async for reply in replies:
                yield reply

    async def Leave(self, request: pb.LeaveRequest, context: Context[Any, Any]) -> pb.LeaveReply:
        member = await self.member(context)
        check_signed(member, messages.leave_statement(request, member.session), request.signature)
        self.run.leave(member, messages.trained_through(request))
        return pb.LeaveReply()

    async def Probe(self, request: pb.ProbeRequest, context: Context[Any, Any]) -> pb.ProbeReply:
        received_us = self.run.hall.now_us()
        await self.member(context)
        answered_us = self.run.hall.now_us()
        return pb.ProbeReply(term=self.run.view.term.number, received_us=received_us, answered_us=answered_us)

    async def Snapshot(self, request: pb.SnapshotRequest, context: Context[Any, Any]) -> AsyncIterator[pb.FilePart]:
        member = await self.member(context)
        step = self.run.state.snapshot_steps()[-1]
        path, offset = self.run.state.snapshot_path(step), request.offset if request.step == step else 0
        await _check_offset(path, offset, f"the snapshot of step {step}", context)
        async with one_at_a_time(member, "Snapshot", context):
            async for part in self._file(member, path, step, offset):
                yield part
        check_expelled(member)

    async def Corpus(self, request: pb.CorpusRequest, context: Context[Any, Any]) -> AsyncIterator[pb.FilePart]:
        member = await self.member(context)
        path = self.run.state.folder / "corpus.zst"
        await _check_offset(path, request.offset, "the data's file", context)
        async with one_at_a_time(member, "Corpus", context):
            async for part in self._file(member, path, offset=request.offset):
                yield part
        check_expelled(member)

    async def Blob(self, request: pb.BlobRequest, context: Context[Any, Any]) -> AsyncIterator[pb.FilePart]:
        member = await self.member(context)
        if len(request.hash) != HASH_BYTES:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the name of a blob has {HASH_BYTES} bytes")
        path, problem = await self._blobs.find(request.hash.hex())
        if problem:
            await context.abort(grpc.StatusCode.DATA_LOSS, problem)  # NOT_FOUND means an unknown session
        await _check_offset(path, request.offset, f"the blob {request.hash.hex()[:16]}…", context)
        async with one_at_a_time(member, "Blob", context):
            async for part in self._file(member, path, offset=request.offset):
                yield part
        check_expelled(member)

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
                    self.counts(member).bytes_fetched += part.ByteSize()
                    began = now()
                    yield part
                    sizes.took(now() - began)
                    part = pb.FilePart()

    async def Evaluated(self, request: pb.EvaluatedRequest, context: Context[Any, Any]) -> pb.EvaluatedReply:
        member = await self.member(context)
        check_signed(member, messages.evaluated_statement(request, member.session), request.signature)
        refusal = self.run.measured(member.node_id, messages.part(request.part), request.loss)
        if refusal:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, refusal[:REFUSAL_LENGTH_MAX])
        return pb.EvaluatedReply()

    async def Status(self, request: pb.StatusRequest, context: Context[Any, Any]) -> pb.StatusReply:
        run, view = self.run, self.run.view
        in_full = proves_organizer(organizer_of(context), self._door.key.public, time.time())
        # not for strangers: it keeps the replica from the round for a pass over the parameters
        is_known = in_full or run.members.of_secret(session_of(context)) is not None
        step, fingerprint = await run.fingerprint() if request.fingerprint and is_known else (view.step, None)
        whole, rows = self._whole_run(request.certify), run.rows
        recorded = await run.workers.submit(Job.READ_STATUS, run.state.watch_ledger.recorded)
        reply = messages.status(view, recorded, whole, step, fingerprint, in_full=in_full)
        if request.certify and whole is not None and whole.asked.counted:
            row = await run.workers.submit(Job.READ_ROW, run.state.reading_ledger.row, rows - 1)
            certificate = messages.certificate(view, whole, rows, row.hash, time.time()).signed(self._door.key)
            reply.certificate = certificate.text().encode()
        if in_full and run.keeper is not None:
            reply.standby = run.keeper.in_words()
        self._complete_status(reply, in_full=in_full)
        return reply

    def _complete_status(self, reply: pb.StatusReply, *, in_full: bool) -> None:
        """Add what only this kind of exchange has."""

    def counts(self, member: Member) -> NodeCounts:
        return self.run.view.counts.of(member.node_id)

    async def member(self, context: Context[Any, Any]) -> Member:
        member = self.run.members.of_secret(session_of(context))
        if member is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, NO_SESSION)
        return member

    async def _compare_contracts(self, request: pb.JoinRequest, context: Context[Any, Any]) -> None:
        ours = self.run.view.contract
        if request.contract in (b"", ours.written):
            return
        await refuse(context, await self.run.workers.submit(Job.COMPARE_CONTRACTS, other_run, ours, request.contract))

    def _goes_on_from(self, contract: bytes) -> bool:
        lineage = self.run.view.contract.lineage
        return lineage is not None and hashlib.sha256(contract).hexdigest() in lineage.contracts

    async def _has_lost_rows(self, request: pb.JoinRequest, context: Context[Any, Any]) -> bool:
        """Refuse a node whose newest row is not in this ledger: the ledger has lost rows, or is another lineage.

        If there was a promotion of which the node does not know, the rows were lost then: return True."""
        if request.head_step == 0:
            return False
        sealed = self.run.rows
        was_promoted = self.run.hall.proven.is_newer_than(request.term)
        if request.head_step > sealed and was_promoted:
            return True
        if request.head_step > sealed:
            text = (
                f"this coordinator's ledger ends at step {sealed}, but the node has seen step {request.head_step} "
                "sealed: the ledger has lost rows, and the organizer has to restore its newest copy"
            )
            self._refuse_head(request, text)
        try:
            row = await self.run.workers.submit(Job.READ_ROW, self.run.state.reading_ledger.row, request.head_step - 1)
        except LedgerError as error:
            log.error("cannot read the row that a joining node names: %s", error)
            await refuse(context, "the coordinator cannot read its own ledger; tell the organizer, whose log says why")
        if row.hash != request.head_hash and was_promoted:
            return True
        if row.hash != request.head_hash:
            text = (
                f"the node's row for step {request.head_step} differs from the one in this ledger: "
                "they are two lineages; start the node with another --state-dir to take part in this one"
            )
            self._refuse_head(request, text)
        return False

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


def check_signed(member: Member, statement: bytes, signature: bytes) -> None:
    """Refuse what the node's key has not signed: a session's secret alone must not speak for the node."""
    if not member.public_key.verifies(signature, statement):
        raise CallRefused(Denied(DoorReason.BAD_SIGNATURE, "this is not signed by the key of the node"))


def check_expelled(member: Member) -> None:
    """Say why, if a stream ends because the coordinator has ended the session."""
    if member.expelled is not None:
        raise CallRefused(member.expelled)


@asynccontextmanager
async def one_at_a_time(member: Member, call: str, context: Context[Any, Any]) -> AsyncIterator[None]:
    """Allow a session only one open call of each kind, so that it cannot exhaust shared resources."""
    calls = member.calls  # belongs to this session; the next session gets a new set
    if call in calls:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"one {call} at a time in a session")
    calls.add(call)
    try:
        yield
    finally:
        calls.discard(call)
