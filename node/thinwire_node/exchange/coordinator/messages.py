"""Converts between wire messages and the port's types. No other package of the node uses protobuf.

A coordinator is a stranger: every text that it sends is cleaned here (`thinwire_proto.clean_text`), and every number,
list and key is bounded. What is beyond its bound raises PayloadError, and the node connects again after a pause."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict

from thinwire_common.options import host_and_port
from thinwire_node.exchange.port import (
    Admission,
    AnnouncedRound,
    Announcement,
    Claim,
    EvaluationPart,
    MomentumClaim,
    Outcome,
    Paused,
    RunComplete,
    Waiting,
)
from thinwire_proto.clean_text import NAME_BYTES_MAX, clean_text
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.contract.sections import TILE_EDGE
from thinwire_proto.errors import ContractError, PayloadError
from thinwire_proto.exact.amendments import amended_by
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.identity.terms import ProvenTerm
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.reason_numbers import reason_of

POSITIONS_MAX = 1 << 24
"""Sample positions of a lease: more than three times the most that `round.samples` can be. Of what follows it, the node
looks at so many."""
POSITION_MAX = 1 << 62
NUMBER_MAX = 1 << 53
"""The largest term, round, step or topology, and the largest clock in microseconds: 285 years."""
NONCES_MAX = 17
"""One more than the largest `round.base_age_max`."""
TIME_LEFT_MS_MAX = 2 * 86_400_000
"""Twice the longest round, since one may begin before its beat."""
PARTS_MAX = 1 << 12
SESSION_BYTES_MAX = 256
PROOF_BYTES_MAX = 256
KEY_BYTES = 32
ADDRESS_LENGTH_MAX = 300
"""A host's name has 253 letters at most."""


def momentum_message(claim: MomentumClaim | None) -> pb.KeptMomentum | None:
    if claim is None:
        return None
    return pb.KeptMomentum(trained_through=claim.trained_through, sent_since=claim.sent_since)


def greeting(reply: pb.HelloReply) -> pb.HelloReply:
    """A reply to Hello whose fields have the right sizes. Raises PayloadError."""
    _check_size("key", reply.public_key, KEY_BYTES, KEY_BYTES)
    _check_size("challenge", reply.challenge, 0, PROOF_BYTES_MAX)
    _check_size("signature", reply.signature, 0, PROOF_BYTES_MAX)
    return reply


def session_secret(reply: pb.JoinReply) -> str:
    """The session's secret, which the node repeats in the metadata of its calls. Raises PayloadError."""
    secret = reply.session
    if not (0 < len(secret) <= SESSION_BYTES_MAX and secret.isascii() and secret.isalnum()):
        raise PayloadError(f"the secret of a session is not 1 to {SESSION_BYTES_MAX} letters and digits")
    return secret


def admission(reply: pb.JoinReply) -> Admission:
    """Convert a reply to Join. Raises ContractError or PayloadError."""
    contract = contract_in(reply)
    check_number("sealed steps", reply.step, contract.schedule.steps)
    check_number("term", reply.term)
    term = ProvenTerm(reply.term, reply.term_signature)
    return Admission(
        contract, reply.step, reply.take_snapshot, clean_text(reply.drop_momentum), term, rewound=reply.rewound
    )


def contract_in(reply: pb.JoinReply | pb.ExamineReply) -> Contract:
    """The contract in a reply, with its amendments. Raises ContractError."""
    try:
        return amended_by(parse_contract(reply.contract), reply.amendments)
    except ContractError as error:  # it quotes the contract
        raise ContractError(clean_text(str(error))) from None


def standby_address(message: pb.Announcement) -> str:
    """Where the coordinator's standby is, HOST:PORT; empty if it says nothing. Raises PayloadError."""
    if not (text := message.standby):
        return ""
    try:
        host_and_port(text, port_min=1)
    except ValueError:
        raise PayloadError("the coordinator announces a standby at an address that is none") from None
    if len(text) > ADDRESS_LENGTH_MAX or clean_text(text) != text:
        raise PayloadError("the coordinator announces a standby at an address that is none")
    return text


def resumes_in(message: pb.Announcement | pb.BeatReply) -> float | None:
    """Seconds until a paused run goes on; None if nobody has said when. Raises PayloadError."""
    check_number("seconds until the run goes on", message.resumes_in_s)
    return float(message.resumes_in_s) if message.HasField("resumes_in_s") else None


def announcement(message: pb.Announcement, contract: Contract | None = None) -> Announcement:
    """Convert an announcement. Raises PayloadError for what no coordinator of this contract announces; without one,
    of any contract."""
    steps = contract.schedule.steps if contract else NUMBER_MAX
    check_number("step", message.step, steps)
    check_number("term", message.term)
    if message.state == pb.Announcement.STATE_COMPLETE:
        return RunComplete(message.step)
    if message.state == pb.Announcement.STATE_WAITING:
        return Waiting(message.step, clean_text(message.text))
    if message.state == pb.Announcement.STATE_PAUSED:
        return Paused(message.step, clean_text(message.text), resumes_in(message))
    if message.state != pb.Announcement.STATE_ROUND:
        raise PayloadError(f"the coordinator announces the unknown state {message.state}")
    check_number("round", message.round)
    check_number("clock", message.clock_us)
    check_number("milliseconds that are left", message.time_left_ms, TIME_LEFT_MS_MAX)
    check_number("k", message.k, contract.demo.k if contract else TILE_EDGE**2, least=1)
    check_number("number of nonces", len(message.nonces), NONCES_MAX, least=1)
    if message.HasField("evaluating"):
        check_number("step to measure", message.evaluating, steps)
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


def amended(message: pb.Announcement, contract: Contract, *, is_first: bool) -> Contract:
    """The contract after the amendments of an announcement. is_first: of its stream, so that it has all amendments.

    Raises ContractError."""
    before = contract.amendments
    if is_first and tuple(message.amendments) == tuple(amendment.written for amendment in before):
        return contract
    try:
        return amended_by(contract.first if is_first else contract, message.amendments)
    except ContractError as error:
        raise ContractError(clean_text(str(error))) from None


def probe_times(reply: pb.ProbeReply) -> tuple[int, float, float]:
    """The term, and when a probe was received and answered, in seconds. Raises PayloadError."""
    check_number("term", reply.term)
    check_number("clock", reply.answered_us)
    check_number("clock", reply.received_us, reply.answered_us)
    return reply.term, reply.received_us / 1e6, reply.answered_us / 1e6


def check_number(what: str, number: int, most: int = NUMBER_MAX, *, least: int = 0) -> None:
    """Raise PayloadError unless a number of the coordinator is within its bounds."""
    if not least <= number <= most:
        raise PayloadError(f"the coordinator sent an impossible {what}: {number} is not between {least} and {most}")


def _check_size(what: str, data: bytes, least: int, most: int) -> None:
    if not least <= len(data) <= most:
        raise PayloadError(
            f"the coordinator sent a {what} of {len(data)} bytes, which is not between {least} and {most}"
        )


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


def evaluation_parts(messages: Collection[pb.EvaluationPart]) -> tuple[EvaluationPart, ...]:
    """Parts of held-out sets. Raises PayloadError; a part that this node's data do not have is no error."""
    check_number("number of parts", len(messages), PARTS_MAX)
    for part in messages:
        check_number("step of a part", part.step)
        check_number("start of a part", part.start)
        check_number("length of a name", len(part.name.encode()), NAME_BYTES_MAX)
    return tuple(
        EvaluationPart(part.step, clean_text(part.name), part.spread, part.start, part.count) for part in messages
    )


def evaluation_part(part: EvaluationPart) -> pb.EvaluationPart:
    return pb.EvaluationPart(step=part.step, name=part.name, spread=part.spread, start=part.start, count=part.count)


def header(claim: Claim, key: SecretKey) -> pb.ContributionHeader:
    """The header of a contribution, signed by the node's key. A claim without samples is not signed."""
    signature = key.sign(statements.contribution(claim.name, claim.samples)) if claim.samples else b""
    fields = {name: value for name, value in asdict(claim).items() if name != "name"}
    return pb.ContributionHeader(**fields, signature=signature)


def outcome(receipt: pb.Receipt) -> Outcome:
    """Convert a receipt. Raises PayloadError."""
    check_number("step", receipt.step)
    check_number("clock", receipt.arrived_us)
    arrived = receipt.arrived_us / 1e6 if receipt.arrived_us else None
    return Outcome(reason_of(receipt), clean_text(receipt.text), receipt.step, arrived)
