"""The call of a standby, and what a coordinator does when it learns that another machine was promoted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc
from grpc.aio import ServicerContext as Context

from thinwire_coordinator.hall.access.door import Denied, Door, DoorReason
from thinwire_coordinator.hall.rpc.calls import CallRefused, refuse
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.standby.items import VERSION, Position
from thinwire_coordinator.hall.standby.keeper import Following
from thinwire_proto.clean_text import clean_text
from thinwire_proto.identity.terms import ProvenTerm
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import split_for_download

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
