"""Reaches a coordinator without joining: whether it proves who it is, its contract, and the line to it.

No use of an invite is spent, and nothing is enrolled. A coordinator of an earlier version does not measure lines."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from thinwire_node.exchange.coordinator.clock import Probe
from thinwire_node.exchange.coordinator.dial import NONCE_BYTES, check_coordinator, dial, prove
from thinwire_node.exchange.coordinator.messages import NUMBER_MAX, check_number, contract_in, greeting
from thinwire_node.exchange.port import LinkLost
from thinwire_proto import limits
from thinwire_proto.clean_text import clean_text
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ContractError, PayloadError, RemoteError
from thinwire_proto.identity import statements
from thinwire_proto.identity.contribution_certificate import ContributionCertificate, read_certificate
from thinwire_proto.identity.invite import Invite
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import EXAMINE_BYTES, EXAMINE_PART_BYTES, MESSAGE_BYTES_MAX
from thinwire_proto.wire.service_pb2 import StatusRequest
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

HELLOS = 3
"""Round trips that are timed. The coordinator bounds how many calls strangers make."""
EXAMINATIONS = 3
"""Attempts at an examination. If the coordinator ends the call just as the node writes to it, grpc reports INTERNAL in
place of its reason (grpc/grpc#36066). A challenge serves once, so another attempt says hello again."""
FIRST_BYTES = 16 << 10
OPTIONS = (("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),)


@dataclass(frozen=True)
class Line:
    """A line as measured through the coordinator. Rates in bits a second of payload. clock_error_s: the bound on the
    error with which a node on it reads the coordinator's clock, in seconds."""

    up_bits_s: float
    down_bits_s: float
    clock_error_s: float


@dataclass(frozen=True)
class Examined:
    """A coordinator's answer to a node that may join. contract: with its amendments."""

    contract: Contract
    line: Line


@dataclass(frozen=True)
class Reached:
    """A coordinator that has proved its key, and what it tells everybody of its run. round_trip_s: the fastest of a few
    calls, in seconds. examined: None if it did not let itself be examined. why_not: for what reason."""

    round_trip_s: float
    state: str
    step: int
    steps: int
    parameters: int
    nodes_active: int
    examined: Examined | None
    why_not: str


async def reach(address: str, invite: Invite | None, key: SecretKey) -> Reached:
    """Ask a coordinator who it is, and how its run is, and measure the line to it. address, invite: see `dial`. key:
    of the node.

    Raises RemoteError if it cannot be reached or falls silent, Refused if it proves nothing, ConfigError."""
    try:
        dialled = await dial(address, invite, OPTIONS)
        async with dialled.channel as channel:
            stub: Any = SwarmStub(channel)
            seconds = []

            async def hello() -> pb.HelloReply:
                nonce, began_s = secrets.token_bytes(NONCE_BYTES), time.monotonic()
                reply: pb.HelloReply = await stub.Hello(pb.HelloRequest(nonce=nonce), timeout=limits.CALL_S)
                seconds.append(time.monotonic() - began_s)
                check_coordinator(invite, nonce, reply)
                return reply

            for _ in range(HELLOS):
                reply = await hello()
            run = await stub.Status(pb.StatusRequest(), timeout=limits.STATUS_ANSWER_S)
            examined, why_not = None, ""
            for attempt in range(EXAMINATIONS):
                reply = await hello() if attempt else reply
                proof = prove(key, invite.token if invite else b"", greeting(reply), statements.examine)
                try:
                    examined, why_not = await _examine(stub, pb.ExamineRequest(**proof)), ""
                except grpc.RpcError as error:
                    why_not = _why_not(error)
                    if error.code() == grpc.StatusCode.INTERNAL:
                        continue
                except (ContractError, PayloadError) as error:
                    why_not = str(error)
                break
    except (LinkLost, PayloadError, grpc.RpcError) as error:
        words = _in_words(error) if isinstance(error, grpc.RpcError) else clean_text(str(error))
        raise RemoteError(f"{address}: {words}") from None
    figures = run.state, run.step, run.steps, run.parameters, run.nodes_active
    return Reached(min(seconds), *figures, examined, why_not)


def _why_not(error: grpc.RpcError) -> str:
    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
        return "the coordinator is of an earlier version, which measures no lines; ask the organizer to update it"
    return _in_words(error)


def _in_words(error: grpc.RpcError) -> str:
    details = clean_text(error.details() or "")
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        return f"the coordinator went away in the middle ({details})"
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "the coordinator fell silent"
    return details or "the coordinator fell silent"


async def _examine(stub: Any, first: pb.ExamineRequest) -> Examined:
    """Prove the node's key, and send and fetch padding. Raises grpc.RpcError, ContractError or PayloadError."""
    call = stub.Examine(timeout=limits.CALL_S)
    probes = []

    async def ask(request: pb.ExamineRequest) -> tuple[pb.ExamineReply, float]:
        sent = time.monotonic()
        await call.write(request)
        reply = await call.read()
        if not isinstance(reply, pb.ExamineReply):  # the end of the call, which says why
            await call
            raise PayloadError("the coordinator ended an examination without a reply")
        back = time.monotonic()
        check_number("clock", reply.received_us, NUMBER_MAX)
        check_number("clock", reply.answered_us, NUMBER_MAX)
        probes.append(Probe(sent, reply.received_us / 1e6, reply.answered_us / 1e6, back))
        return reply, back - sent

    try:
        told, _ = await ask(first)
        contract = contract_in(told)
        trips = [(await ask(pb.ExamineRequest()))[1] for _ in range(HELLOS)]

        async def rate(request_of: Callable[[int], pb.ExamineRequest]) -> float:
            """Bits a second of the fastest message: a line is slow at first (TCP's slow start). At most half of a
            message's time counts as round trip, because trips differ by more than a fast line takes."""
            size, total, fastest = FIRST_BYTES, 0, 0.0
            while total + size <= EXAMINE_BYTES:
                request = request_of(size)
                reply, took_s = await ask(request)
                if len(reply.padding) != request.wanted_bytes:
                    raise PayloadError("the coordinator returns other padding than was asked for")
                total += size
                fastest = max(fastest, 8 * size / max(took_s - min(trips), took_s / 2))
                if took_s > limits.EXAMINE_MESSAGE_S:
                    break
                size = min(2 * size, EXAMINE_PART_BYTES)
            return fastest

        up = await rate(lambda size: pb.ExamineRequest(padding=secrets.token_bytes(size)))
        down = await rate(lambda size: pb.ExamineRequest(wanted_bytes=size))
        await call.done_writing()
    finally:
        call.cancel()
    return Examined(contract, Line(up, down, max(0.0, min(probe.error for probe in probes))))


async def ask_certificate(address: str, invite: Invite | None, node: str) -> ContributionCertificate:
    """The certificate of the node with this id; its signature is not checked. address, invite: see `dial`.

    Raises RemoteError if the coordinator does not answer, or nothing is counted; ConfigError."""
    try:
        dialled = await dial(address, invite, ())
        async with dialled.channel as channel:
            reply = await SwarmStub(channel).Status(StatusRequest(certify=node), timeout=limits.STATUS_ANSWER_S)
    except (LinkLost, grpc.RpcError) as error:
        words = (error.details() if isinstance(error, grpc.RpcError) else str(error)) or "the coordinator fell silent"
        raise RemoteError(f"{address}: {words}; try again later") from None
    if not reply.certificate:
        raise RemoteError(f"{address}: nothing of node {node[:8]} is counted yet, or the ledger is still being read")
    return read_certificate(reply.certificate)
