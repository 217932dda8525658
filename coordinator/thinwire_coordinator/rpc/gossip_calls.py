"""The calls of a run without a centre: Beat, Relay and Deposit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
from grpc.aio import ServicerContext as Context

from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.service_pb2_grpc import SwarmServicer

NOT_GOSSIP = 'this run has a centre: exchange.kind is "star"'


class GossipCalls(SwarmServicer):
    """Answers that there are no such calls in a run with a centre."""

    async def Beat(self, request: pb.BeatRequest, context: Context[Any, Any]) -> pb.BeatReply:
        await _not_served(context)

    async def Relay(
        self, request_iterator: AsyncIterator[pb.Parcel], context: Context[Any, Any]
    ) -> AsyncIterator[pb.Parcel]:
        await _not_served(context)
        yield pb.Parcel()

    async def Deposit(
        self, request_iterator: AsyncIterator[pb.DepositPart], context: Context[Any, Any]
    ) -> pb.DepositReply:
        await _not_served(context)


async def _not_served(context: Context[Any, Any]) -> NoReturn:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, NOT_GOSSIP)
    raise AssertionError("abort returned")
