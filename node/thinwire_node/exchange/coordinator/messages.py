"""Converts between wire messages and the port's types. No other package of the node uses protobuf.

A coordinator is a stranger: every text that it sends is cleaned here (`thinwire_proto.clean_text`)."""

from __future__ import annotations

from collections.abc import Iterable

from thinwire_node.exchange.port import (
    Admission,
    AnnouncedRound,
    Announcement,
    Claim,
    EvaluationPart,
    MomentumClaim,
    Outcome,
    RunComplete,
    Waiting,
)
from thinwire_proto.clean_text import clean_text
from thinwire_proto.contract import parse_contract
from thinwire_proto.errors import ContractError, PayloadError
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.reason_numbers import reason_of

POSITIONS_MAX = 1 << 24
"""Sample positions of a lease: more than three times the most that `round.samples` can be. Of what follows it, the node
looks at so many."""
POSITION_MAX = 1 << 62


def momentum_message(claim: MomentumClaim | None) -> pb.KeptMomentum | None:
    if claim is None:
        return None
    return pb.KeptMomentum(trained_through=claim.trained_through, sent_since=claim.sent_since)


def admission(reply: pb.JoinReply) -> Admission:
    """Convert a reply to Join. Raises ContractError."""
    try:
        contract = parse_contract(reply.contract)
    except ContractError as error:  # it quotes the contract
        raise ContractError(clean_text(str(error))) from None
    return Admission(contract, reply.step, reply.take_snapshot, clean_text(reply.drop_momentum))


def announcement(message: pb.Announcement) -> Announcement:
    """Convert an announcement. Raises PayloadError if a lease is larger than any contract allows."""
    if message.state == pb.Announcement.STATE_ROUND:
        return AnnouncedRound(
            term=message.term,
            number=message.round,
            step=message.step,
            deadline=message.clock_us / 1e6 + message.time_left_ms / 1000,
            k=message.k,
            nonces=tuple(message.nonces),
            lease=lease_of(message.lease),
            upcoming=_clipped(range(run.start, run.start + run.count) for run in message.upcoming),
            evaluate=evaluation_parts(message.evaluate),
            evaluating=message.evaluating if message.HasField("evaluating") else None,
        )
    if message.state == pb.Announcement.STATE_COMPLETE:
        return RunComplete(message.step)
    return Waiting(message.step, clean_text(message.text))


def lease_of(runs: Iterable[pb.SampleRange]) -> tuple[range, ...]:
    """The positions of a lease. The node walks over them, so a coordinator must not make that take for ever."""
    found = tuple(range(run.start, run.start + run.count) for run in runs)
    if _clipped(found) != found:
        raise PayloadError("the coordinator announced a lease that is larger than any contract allows")
    return found


def _clipped(runs: Iterable[range]) -> tuple[range, ...]:
    """The first POSITIONS_MAX positions."""
    found, left = [], POSITIONS_MAX
    for run in runs:
        first = run[:left] if run.stop <= POSITION_MAX else range(0)
        if not first:
            break
        found.append(first)
        left -= len(first)
    return tuple(found)


def evaluation_parts(messages: Iterable[pb.EvaluationPart]) -> tuple[EvaluationPart, ...]:
    return tuple(EvaluationPart(part.step, part.name, part.spread, part.start, part.count) for part in messages)


def evaluation_part(part: EvaluationPart) -> pb.EvaluationPart:
    return pb.EvaluationPart(step=part.step, name=part.name, spread=part.spread, start=part.start, count=part.count)


def header(claim: Claim, key: SecretKey) -> pb.ContributionHeader:
    """The header of a contribution, signed by the node's key. A claim without samples is not signed."""
    signature = key.sign(statements.contribution(claim.name, claim.samples)) if claim.samples else b""
    return pb.ContributionHeader(
        term=claim.term,
        round=claim.round,
        step=claim.step,
        base_step=claim.base_step,
        fingerprint=claim.fingerprint,
        samples=claim.samples,
        loss=claim.loss,
        dropped=claim.dropped,
        compute_ms=claim.compute_ms,
        trained_through=claim.trained_through,
        skipped=claim.skipped,
        signature=signature,
    )


def outcome(receipt: pb.Receipt) -> Outcome:
    arrived = receipt.arrived_us / 1e6 if receipt.arrived_us else None
    return Outcome(reason_of(receipt), clean_text(receipt.text), receipt.step, arrived)
