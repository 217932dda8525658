"""The calls that only star runs have: Attend, Contribute, AskReceipt and Updates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from grpc.aio import ServicerContext as Context

from thinwire_coordinator.hall.access.door import Denied, DoorReason
from thinwire_coordinator.hall.counts import NodeCounts
from thinwire_coordinator.hall.events import PhaseTook
from thinwire_coordinator.hall.ledger.retention import NotKept
from thinwire_coordinator.hall.rpc.calls import CallRefused, refuse
from thinwire_coordinator.hall.rpc.service import Service, check_expelled, one_at_a_time
from thinwire_coordinator.star import messages
from thinwire_coordinator.star.feed import NotWanted
from thinwire_coordinator.star.star import Star
from thinwire_proto.wire import service_pb2 as pb


class StarService(Service):
    run: Star

    def own_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """Updates sends messages that are already serialized, once for all followers."""
        updates = grpc.unary_stream_rpc_method_handler(
            self.Updates, request_deserializer=pb.UpdatesRequest.FromString, response_serializer=bytes
        )
        return {"Updates": updates}

    async def Attend(self, request: pb.AttendRequest, context: Context[Any, Any]) -> AsyncIterator[pb.Announcement]:
        member = await self.member(context)
        async with one_at_a_time(member, "Attend", context), aclosing(self.run.attend(member)) as announcements:
            told, standby = 0, ""
            async for announcement in announcements:
                amendments = self.run.view.contract.amendments
                message = messages.announcement(announcement, amendments[told:])
                told = len(amendments)
                if standby != (standby := self.run.keeper.address):
                    message.standby = standby
                yield message
        check_expelled(member)

    async def Contribute(
        self, request_iterator: AsyncIterator[pb.ContributionPart], context: Context[Any, Any]
    ) -> pb.Receipt:
        parts = aiter(request_iterator)
        first = await anext(parts, pb.ContributionPart())
        member = await self.member(context)
        if denied := self.rules.contribution(member.node_id, self.run.view.round_number):
            raise CallRefused(denied)
        counts = self.counts(member)
        counts.bytes_up += first.ByteSize()  # even if the header is refused and no other part is read
        claim = messages.claim(first.header, member.session)
        return messages.receipt(await self.run.contribute(member, claim, _payload(counts, first, parts)))

    async def AskReceipt(self, request: pb.ReceiptRequest, context: Context[Any, Any]) -> pb.Receipt:
        await self.member(context)
        return messages.receipt(await self.run.ask_receipt(request.contribution))

    async def Updates(  # type: ignore[override]
        self, request: pb.UpdatesRequest, context: Context[Any, Any]
    ) -> AsyncIterator[bytes]:
        """Stream messages that are already serialized; see `own_handlers`."""
        member = await self.member(context)
        step = request.from_step
        if step > self.run.feed.step:
            await refuse(context, f"there is no step {step} yet: the ledger ends at step {self.run.feed.step}")
        follows = step == self.run.feed.step  # otherwise the node has to catch up first
        async with one_at_a_time(member, "Updates", context):
            while True:
                try:
                    async with self.run.feed.lend(step, lambda: member.expelled) as loan:
                        for part in loan.update.parts(self.run.feed.step):
                            self.counts(member).bytes_down += len(part)
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
                if step == self.run.feed.step:
                    if follows:
                        after_s = self.run.view.now - self.run.view.sealed_at
                        self.run.events.tell(PhaseTook("broadcast", after_s))
                    follows = True
        check_expelled(member)


async def _payload(
    counts: NodeCounts, first: pb.ContributionPart, parts: AsyncIterator[pb.ContributionPart]
) -> AsyncIterator[bytes]:
    """The payload in parts. Messages after the first are counted as they are read."""
    yield first.data
    async for part in parts:
        counts.bytes_up += part.ByteSize()
        yield part.data
