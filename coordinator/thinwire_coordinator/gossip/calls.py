"""The calls that only gossip runs have: Beat, Deposit and Relay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from grpc.aio import ServicerContext as Context

from thinwire_coordinator.gossip.beats import BeatAnswer, ReportRefused
from thinwire_coordinator.gossip.figures import GossipFigures
from thinwire_coordinator.gossip.gossip import Gossip
from thinwire_coordinator.gossip.judging import address_of
from thinwire_coordinator.gossip.ledger_rows import Deposited
from thinwire_coordinator.gossip.relay import Relay, relay_parcels
from thinwire_coordinator.hall.access.door import Denied, Door, DoorReason
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.hall.rpc.calls import CallRefused, host_of
from thinwire_coordinator.hall.rpc.messages import evaluation_part
from thinwire_coordinator.hall.rpc.service import Service, check_expelled, one_at_a_time
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.lines_wire import lines_of
from thinwire_proto.gossip.report_wire import report_of
from thinwire_proto.gossip.reports import SIGNATURE_BYTES, SignedReport
from thinwire_proto.wire import service_pb2 as pb

STATES = {
    "waiting": pb.BeatReply.STATE_WAITING,
    "paused": pb.BeatReply.STATE_PAUSED,
    "training": pb.BeatReply.STATE_TRAINING,
    "deposit": pb.BeatReply.STATE_DEPOSIT,
    "complete": pb.BeatReply.STATE_COMPLETE,
}


class GossipService(Service):
    run: Gossip

    def __init__(self, run: Gossip, door: Door, **others: Any) -> None:
        super().__init__(run, door, **others)
        self._relay = Relay()

    async def Beat(self, request: pb.BeatRequest, context: Context[Any, Any]) -> pb.BeatReply:
        member = await self.member(context)
        try:
            address = address_of(request.listens_at, host_of(self.peer(context)))
            lines = lines_of(request.lines) if request.HasField("lines") else None
            signed, amendments = _signed(member, request), request.amendments
            answer = await self.run.beats.beat(member, signed, request.sketch, address, lines, amendments)
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
        member = await self.member(context)
        header = first.header
        claim = Deposited(member.node_id, header.iteration, header.head, header.hash, header.signature)
        try:
            refused = await self.run.deposits.take(member, claim, header.body_bytes, _bytes(first, parts))
        except ReportRefused as error:
            raise CallRefused(error.denied) from None
        return pb.DepositReply(refused=refused)

    async def Relay(
        self, request_iterator: AsyncIterator[pb.Parcel], context: Context[Any, Any]
    ) -> AsyncIterator[pb.Parcel]:
        member = await self.member(context)
        async with one_at_a_time(member, "Relay", context):
            async for parcel in relay_parcels(self._relay, member, request_iterator, self.counts(member)):
                yield parcel
        check_expelled(member)

    def _complete_status(self, reply: pb.StatusReply, *, in_full: bool) -> None:
        figures = self.run.view.figures
        reply.gossip.CopyFrom(_figures(figures, self.run.view.counts))
        reply.step = self.run.view.step  # the replica is the first state or the mean, and its step a row
        for node in reply.nodes if in_full else ():
            node.edges.extend(
                pb.EdgeStatus(node_id=edge.node, line=edge.line, iteration=edge.iteration)
                for edge in figures.edges.get(node.node_id, ())
            )


def _figures(figures: GossipFigures, counts: Counts) -> pb.GossipStatus:
    least, median, most = figures.iterations
    return pb.GossipStatus(
        iteration_least=least,
        iteration_median=median,
        iteration_most=most,
        topology=figures.topology,
        members=figures.members,
        present=figures.present,
        disagreement=figures.disagreement,
        disagreement_error=figures.error,
        disagreement_in_steps=figures.in_steps,
        deposits=len(figures.deposited),
        beats=figures.beats,
        codec=figures.codec,
        all_reduce_bytes=2 * counts.dense_bytes,
    )


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
        resumes_in_s=None if answer.resumes_in_s is None else round(answer.resumes_in_s),
        amendments=[amendment.written for amendment in answer.amendments],
    )
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
