"""The call of a standby, both ends of it, and what a coordinator does when another machine was promoted."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc
from grpc.aio import ServicerContext as Context

from thinwire_common import heartbeat
from thinwire_common.reach.errors import Unreachable
from thinwire_common.reach.grpc_target import NO_PROXY, grpc_target
from thinwire_common.reach.hosts import split_address
from thinwire_common.reach.preflight import find_way
from thinwire_coordinator.hall.access.door import NONCE_BYTES, Denied, Door, DoorReason
from thinwire_coordinator.hall.rpc.calls import CallRefused, refuse
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.standby.items import ITEM_BYTES_MAX, VERSION, Position
from thinwire_coordinator.hall.standby.keeper import Following
from thinwire_proto import limits
from thinwire_proto.clean_text import clean_text
from thinwire_proto.errors import ConfigError, LocalError, RemoteError
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.identity.terms import ProvenTerm
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import MESSAGE_BYTES_MAX, Assembly, split_for_download
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

GAVE_WAY = "another machine was promoted, and is the coordinator of this run now"


async def give_way_to(run: Run, request: pb.JoinRequest | pb.FollowRequest, context: Context[Any, Any]) -> None:
    """End this coordinator if the caller proves that another machine was promoted after it."""
    shown = ProvenTerm(request.term, request.term_signature)
    if shown.is_newer_than(run.hall.term.number) and shown.proves(run.state.key.public, run.hall.contract.hash):
        run.give_way(shown.number)
    if run.superseded:
        await context.abort(grpc.StatusCode.UNAVAILABLE, GAVE_WAY)


async def follow(
    run: Run, door: Door, requests: AsyncIterator[pb.FollowRequest], context: Context[Any, Any]
) -> AsyncGenerator[pb.FollowPart, None]:
    """Send a standby what it lacks, and then what is new, until its stream ends."""
    first = await anext(requests, pb.FollowRequest())
    if not door.is_own_key(first.challenge, first.signature):
        raise CallRefused(Denied(DoorReason.BAD_SIGNATURE, "this standby does not hold the key of this run"))
    await give_way_to(run, first, context)
    if first.term:
        await refuse(
            context, f"this is the coordinator of term {run.hall.term.number:,}, which knows of your promotion"
        )
    if (keeper := run.keeper) is None:
        await refuse(context, "a gossip run has no standby: its nodes hold the model, and go on from its backups")
    if first.items != VERSION:
        text = f"the standby reads items of version {first.items}, and this coordinator sends version {VERSION}"
        await refuse(context, f"{text}: install the same thinwire on both machines")
    if first.contract != run.hall.contract.hash:
        text = "the standby has another run of this key, such as the one that this one is a branch of"
        await refuse(context, f"{text}; restore a backup of this run into an empty --state-dir, and follow with that")
    position = Position(
        clean_text(first.address),
        first.step,
        first.head,
        first.snapshot,
        first.begun_snapshot,
        first.begun_bytes,
        first.process,
    )
    if other := keeper.other_than(position):
        await context.abort(grpc.StatusCode.UNAVAILABLE, other)
    if why := await keeper.why_not(position):
        await refuse(context, why)
    if other := keeper.other_than(position):  # which came meanwhile
        await context.abort(grpc.StatusCode.UNAVAILABLE, other)
    following = keeper.begin(position)
    reading = asyncio.ensure_future(_read(requests, following))
    try:
        async for item in following.items():
            size = len(item)
            for data in split_for_download(item):
                yield pb.FollowPart(size=size, data=data)
                size = 0
    finally:
        reading.cancel()
        keeper.ended(following)


async def _read(requests: AsyncIterator[pb.FollowRequest], following: Following) -> None:
    """Note what is on the standby's disk, until it says nothing any more."""
    try:
        async for request in requests:
            following.synced(request.synced)
    finally:
        following.end()


log = logging.getLogger("thinwire.coordinator")


class CannotFollow(LocalError):
    """The coordinator says that this standby cannot follow it. Another attempt would fail as well."""


@dataclass(frozen=True)
class FollowedAddress:
    """Where a coordinator is, HOST:PORT. key: the run's, which both ends hold. contract: the hash of the run's.
    insecure: it speaks plain text, on this machine. public_tls: it has a certificate that the system trusts."""

    address: str
    key: SecretKey
    contract: bytes
    insecure: bool = False
    public_tls: bool = False


async def follow_coordinator(
    followed: FollowedAddress, position: Position, apply: Callable[[bytes], Awaitable[None]], begun: Callable[[], None]
) -> None:
    """Follow a coordinator until the stream ends, and say of each item that it is on disk once `apply` has returned.

    begun: called when the coordinator has taken this standby. Raises RemoteError, CannotFollow, or what `apply` raises.
    """
    async with _stub(followed) as stub:
        first = await _answer(stub, followed.key)
        first.address, first.step, first.head = position.address, position.step, position.head
        first.snapshot = position.snapshot
        first.begun_snapshot, first.begun_bytes = position.begun, position.begun_bytes
        first.contract, first.items, first.process = followed.contract, VERSION, position.process
        call = stub.Follow()
        await call.write(first)
        progress = _Progress(call)
        saying = asyncio.ensure_future(progress.say())
        assembly: Assembly | None = None
        count = 0
        try:
            async for part in call:
                if assembly is None:
                    if not count:
                        begun()
                    count += 1
                    assembly = Assembly(part.size, ITEM_BYTES_MAX, "item")
                assembly.add(part.data)
                if assembly.complete:
                    await apply(assembly.whole())
                    progress.synced()
                    assembly = None
        finally:
            saying.cancel()
            call.cancel()


async def show_term(followed: FollowedAddress, proven: ProvenTerm) -> None:
    """Try to show the proof of a promotion to the coordinator at an address until it, or another one of this run, has
    answered."""
    while True:
        try:
            async with _stub(followed) as stub:
                first = await _answer(stub, followed.key)
                first.term, first.term_signature = proven.number, proven.signature
                call = stub.Follow()
                await call.write(first)
                await call.read()
                code, text = await call.code(), await call.details()
            log.info("%s", f"the coordinator at {followed.address} was told of the promotion: {clean_text(text or '')}")
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION):
                return
        except (RemoteError, ConfigError, grpc.RpcError, asyncio.InvalidStateError) as error:
            log.debug("%s", error)
        await asyncio.sleep(limits.BACKOFF_MAX_S)


class _Progress:
    """Says how many items are on disk, and also says so when nothing happens, so that silence means a lost machine."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._count = 0
        self._moved = asyncio.Event()

    def synced(self) -> None:
        self._count += 1
        self._moved.set()

    async def say(self) -> None:
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._moved.wait(), limits.HEARTBEAT_S)
            self._moved.clear()
            try:
                await self._call.write(pb.FollowRequest(synced=self._count))
            except (grpc.RpcError, asyncio.InvalidStateError):
                return  # the call has ended, and whoever reads it is told why


@asynccontextmanager
async def _stub(followed: FollowedAddress) -> AsyncIterator[Any]:
    """A gRPC stub. Raises RemoteError or CannotFollow."""
    options = (("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), *heartbeat.CLIENT_OPTIONS)
    address = followed.address
    host, port = split_address(address)
    if followed.insecure:
        channel = grpc.aio.insecure_channel(address, options=[*options, *NO_PROXY])
    else:
        try:
            fingerprint = followed.key.public.fingerprint
            way = await find_way(host, port, fingerprint, public_tls=followed.public_tls)
        except Unreachable as error:
            raise RemoteError(str(error)) from None
        target, more = grpc_target(way, address, public_tls=followed.public_tls)
        credentials = grpc.ssl_channel_credentials(way.roots)
        channel = grpc.aio.secure_channel(target, credentials, options=[*options, *more])
    try:
        yield SwarmStub(channel)
    except grpc.aio.AioRpcError as error:
        text = clean_text(error.details() or "") or error.code().name.lower()
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            text = "what answers there has no standbys: it is an older thinwire, or no coordinator"
        if error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED):
            raise CannotFollow(f"{address}: {text}") from None
        raise RemoteError(text) from None
    finally:
        await channel.close()


async def _answer(stub: Any, key: SecretKey) -> pb.FollowRequest:
    """The first message of Follow, which answers the coordinator's challenge. Raises RemoteError if it has another
    key."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    said: pb.HelloReply = await stub.Hello(pb.HelloRequest(nonce=nonce), timeout=limits.CALL_S)
    if PublicKey(said.public_key) != key.public or not key.public.verifies(
        said.signature, statements.hello(nonce, said.challenge)
    ):
        raise RemoteError("the coordinator that answers there does not hold the key of this run")
    return pb.FollowRequest(challenge=said.challenge, signature=key.sign(statements.follow(said.challenge)))
