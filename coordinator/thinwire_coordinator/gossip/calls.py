"""The calls Beat and Deposit of a run without a centre, with its own Join and Leave."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from grpc.aio import ServicerContext as Context

from thinwire_coordinator.gossip.answers import BeatAnswer, DepositClaim, ReportRefused
from thinwire_coordinator.gossip.judging import address_of
from thinwire_coordinator.gossip.run import GossipRun
from thinwire_coordinator.hall.access.refusals import Denied, DoorReason
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.hall.rpc.calls import CallRefused, host_of
from thinwire_coordinator.hall.rpc.messages import evaluation_part
from thinwire_coordinator.hall.swarm import Swarm
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.lines_wire import lines_of
from thinwire_proto.gossip.report_wire import report_of
from thinwire_proto.gossip.reports import SIGNATURE_BYTES, SignedReport
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.service_pb2_grpc import SwarmServicer

HAS_CENTRE = 'this run has a centre (exchange.kind = "star"), so there is no {}'
NO_CENTRE = 'this run has no centre (exchange.kind = "gossip"), so there is no {}: nodes call Beat; update the node'
STATES = {
    "waiting": pb.BeatReply.STATE_WAITING,
    "training": pb.BeatReply.STATE_TRAINING,
    "deposit": pb.BeatReply.STATE_DEPOSIT,
    "complete": pb.BeatReply.STATE_COMPLETE,
}


class GossipCalls(SwarmServicer):
    """The part of the service that only runs without a centre have."""

    _swarm: Swarm
    _gossip: GossipRun | None
    _peer: Callable[[Context[Any, Any]], str]

    async def _member(self, context: Context[Any, Any]) -> Member:
        raise NotImplementedError

    async def Beat(self, request: pb.BeatRequest, context: Context[Any, Any]) -> pb.BeatReply:
        member = await self._member(context)
        run = self._without_centre("Beat")
        try:
            address = address_of(request.listens_at, host_of(self._peer(context)))
            lines = lines_of(request.lines) if request.HasField("lines") else None
            answer = await run.beats.beat(member, _signed(member, request), request.sketch, address, lines)
        except ReportRefused as refused:
            raise CallRefused(refused.denied) from None
        except PayloadError as error:
            raise CallRefused(Denied(DoorReason.MALFORMED, str(error))) from None
        return beat_reply(answer)

    async def Deposit(
        self, request_iterator: AsyncIterator[pb.DepositPart], context: Context[Any, Any]
    ) -> pb.DepositReply:
        parts = aiter(request_iterator)
        first = await anext(parts, pb.DepositPart())
        member = await self._member(context)
        run, header = self._without_centre("Deposit"), first.header
        claim = DepositClaim(header.iteration, header.head, header.body_bytes, header.hash, header.signature)
        try:
            refused = await run.deposits.take(member, claim, _bytes(first, parts))
        except ReportRefused as error:
            raise CallRefused(error.denied) from None
        return pb.DepositReply(refused=refused)

    def _without_centre(self, call: str) -> GossipRun:
        """Refuse a call that only runs without a centre have."""
        if self._gossip is None:
            raise CallRefused(Denied(DoorReason.OTHER_EXCHANGE, HAS_CENTRE.format(call)))
        return self._gossip

    def _with_centre(self, call: str) -> None:
        """Refuse a call that only runs with a centre have."""
        if self._gossip is not None:
            raise CallRefused(Denied(DoorReason.OTHER_EXCHANGE, NO_CENTRE.format(call)))


def _signed(member: Member, request: pb.BeatRequest) -> SignedReport:
    """Raises PayloadError."""
    if request.number < 1 or len(request.signature) != SIGNATURE_BYTES:
        raise PayloadError("a report needs a number from 1, and a signature")
    report = report_of(request)
    return SignedReport(member.node_id, bytes.fromhex(member.session), request.number, report, request.signature)


async def _bytes(first: pb.DepositPart, parts: AsyncIterator[pb.DepositPart]) -> AsyncIterator[bytes]:
    if first.data:
        yield first.data
    async for part in parts:
        yield part.data


def beat_reply(answer: BeatAnswer) -> pb.BeatReply:
    reply = pb.BeatReply(
        state=STATES[answer.stage],
        text=answer.text,
        next_ms=round(answer.next_s * 1000),
        lease=[pb.SampleRange(start=run.start, count=run.count) for run in answer.lease],
        measure_at=answer.measure_at,
        evaluate=[evaluation_part(part) for part in answer.evaluate],
    )
    if answer.level is not None:
        level, start = answer.level
        reply.level.CopyFrom(pb.ExchangeLevel(codec=level.codec, every=level.every, start=start))
    given = answer.assignment
    if given is not None:
        cycle = [
            pb.Turns(turns=[pb.TurnOfCycle(member=peer, weight=weight) for peer, weight in turns.items()])
            for turns in given.cycle
        ]
        peers = {peer: pb.PeerAddress(member=peer, since=since) for peer, since in given.since.items()}
        for place in answer.peers:
            peers[place.member].public_key, peers[place.member].address = place.public_key, place.address
        reply.assignment.CopyFrom(
            pb.Assignment(
                topology=given.topology,
                start=given.start,
                member=given.member,
                cycle=cycle,
                peers=peers.values(),
                adopts=given.adopts,
            )
        )
    return reply
