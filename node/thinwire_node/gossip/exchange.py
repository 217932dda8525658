"""The exchange `gossip` over gRPC: a link, and beats, relay and deposit."""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from thinwire_node.exchange.coordinator.link import Link
from thinwire_node.exchange.coordinator.messages import KEY_BYTES, check_number, evaluation_parts, lease_of, resumes_in
from thinwire_node.exchange.port import Admission, Applicant
from thinwire_node.gossip.port import BeatAnswer, BeatReport, Parcels, PeerPlace, Phase
from thinwire_proto.clean_text import clean_text
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ContractError, PayloadError
from thinwire_proto.exact.amendments import amended_by
from thinwire_proto.gossip.assignment import Assignment
from thinwire_proto.gossip.lines_wire import report_of_lines
from thinwire_proto.gossip.report_wire import request_of, sign_report
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.wire import service_pb2 as pb


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
        request = beat_request(report, self._beats, key, session)
        request.amendments = len(contract.amendments)
        reply = await self.send_beat(request)
        answer = beat_answer(reply)
        if not reply.amendments:
            return answer
        self._contract = amended(reply, contract)
        return replace(answer, contract=self._contract)

    def relay(self, parcels: Parcels) -> AsyncGenerator[Any, None]:
        return self.open_relay(parcels)

    async def deposit(self, iteration: int, head: bytes, x: bytes) -> str:
        assert self._contract is not None, "join first"
        key, _ = self.joined_as()
        header = deposit_header(self._contract.hash, iteration, head, x, key)
        return await self.send_deposit(header, x)


CYCLE_MAX = 1 << 12
"""Iterations of a topology's cycle."""
PEERS_MAX = 1 << 12
"""Peers of one node: in a complete topology, all others."""
ADDRESS_BYTES_MAX = 255 + 6
"""A name and a port."""
PHASES = {
    pb.BeatReply.STATE_WAITING: Phase.WAITING,
    pb.BeatReply.STATE_PAUSED: Phase.PAUSED,
    pb.BeatReply.STATE_TRAINING: Phase.TRAINING,
    pb.BeatReply.STATE_DEPOSIT: Phase.DEPOSIT,
    pb.BeatReply.STATE_COMPLETE: Phase.COMPLETE,
}


def beat_request(beat: BeatReport, number: int, key: SecretKey, session: bytes) -> pb.BeatRequest:
    """A signed report. number: of the reports of this session, from 1."""
    request = request_of(beat.report)
    request.sketch, request.listens_at = beat.sketch, beat.listens_at
    request.lines.CopyFrom(report_of_lines(beat.lines))
    sign_report(request, number, key, session)
    return request


def amended(reply: pb.BeatReply, contract: Contract) -> Contract:
    """The contract after the amendments of a reply. Raises ContractError."""
    try:
        return amended_by(contract, reply.amendments)
    except ContractError as error:  # it quotes the amendment
        raise ContractError(clean_text(str(error))) from None


def beat_answer(reply: pb.BeatReply) -> BeatAnswer:
    """Convert a reply. Raises PayloadError if it is beyond what a coordinator may send."""
    if reply.state not in PHASES:
        raise PayloadError(f"the coordinator answers a beat with the unknown state {reply.state}")
    check_number("iteration", reply.measure_at)
    assignment, places = (None, {}) if not reply.HasField("assignment") else _assignment(reply.assignment)
    return BeatAnswer(
        PHASES[reply.state],
        clean_text(reply.text),
        reply.next_ms / 1000,
        lease_of(reply.lease),
        assignment,
        places,
        reply.measure_at,
        evaluation_parts(reply.evaluate),
        resumes_in(reply),
    )


def _assignment(message: pb.Assignment) -> tuple[Assignment, dict[int, PeerPlace]]:
    if not 0 < len(message.cycle) <= CYCLE_MAX or len(message.peers) > PEERS_MAX:
        raise PayloadError(f"a topology has {len(message.cycle)} iterations and {len(message.peers)} peers")
    check_number("topology", message.topology, least=1)
    check_number("iteration", message.start)
    places, since = {}, {}
    for peer in message.peers:
        check_number("topology", peer.since)
        if len(peer.public_key) not in (0, KEY_BYTES):
            raise PayloadError(f"member {peer.member} has a key of {len(peer.public_key)} bytes")
        if len(peer.address.encode()) > ADDRESS_BYTES_MAX:
            raise PayloadError(f"member {peer.member} has an address that is too long")
        if peer.public_key:
            places[peer.member] = PeerPlace(PublicKey(peer.public_key), clean_text(peer.address))
        since[peer.member] = peer.since
    cycle = tuple({turn.member: turn.weight for turn in turns.turns} for turns in message.cycle)
    for turns in cycle:
        if not turns.keys() <= since.keys() or not all(map(_is_weight, turns.values())) or sum(turns.values()) > 1:
            raise PayloadError("a topology has turns with unknown members, or weights that are no part of a mean")
    assignment = Assignment(message.topology, message.start, message.member, cycle, since, message.adopts)
    return assignment, places


def _is_weight(value: float) -> bool:
    return math.isfinite(value) and 0 < value <= 1


def deposit_header(contract: bytes, iteration: int, head: bytes, body: bytes, key: SecretKey) -> pb.DepositHeader:
    """A signed header. contract: its hash."""
    body_hash = hashlib.sha256(body).digest()
    signature = key.sign(statements.deposit(contract, iteration, head, body_hash))
    return pb.DepositHeader(iteration=iteration, head=head, body_bytes=len(body), hash=body_hash, signature=signature)
