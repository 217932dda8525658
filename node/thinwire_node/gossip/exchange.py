"""The exchange `gossip` over gRPC: a link, and beats, relay and deposit."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from thinwire_node.exchange.coordinator.link import Link
from thinwire_node.exchange.port import Admission, Applicant
from thinwire_node.gossip import messages
from thinwire_node.gossip.port import BeatAnswer, BeatReport, Parcels
from thinwire_proto.contract import Contract


class Gossip(Link):
    """The implementation of `thinwire_node.gossip.port.GossipExchange`."""

    _beats = 0
    _contract: Contract | None = None

    async def join(self, applicant: Applicant) -> Admission:
        admission = await super().join(applicant)
        self._contract = admission.contract
        return admission

    async def beat(self, report: BeatReport) -> BeatAnswer:
        contract = self._contract
        assert contract is not None, "join first"
        key, session = self.joined_as()
        self._beats += 1
        request = messages.beat_request(report, self._beats, key, session)
        request.amendments = len(contract.amendments)
        reply = await self.send_beat(request)
        answer = messages.beat_answer(reply)
        if not reply.amendments:
            return answer
        self._contract = messages.amended(reply, contract)
        return replace(answer, contract=self._contract)

    def relay(self, parcels: Parcels) -> AsyncGenerator[Any, None]:
        return self.open_relay(parcels)

    async def deposit(self, iteration: int, head: bytes, x: bytes) -> str:
        assert self._contract is not None, "join first"
        key, _ = self.joined_as()
        header = messages.deposit_header(self._contract.hash, iteration, head, x, key)
        return await self.send_deposit(header, x)
