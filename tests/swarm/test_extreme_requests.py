"""A real coordinator meets every message of its service, each field at its extremes, from nodes and from strangers.

Calls and fields come from the protobuf descriptors. A new call is sent with extremes of its empty message. Each message
comes from a session of its own, so that none is refused for what an earlier one did.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from support.extremes import extremes
from support.prometheus import parsed, read
from support.raw_calls import hello, in_session, join
from support.raw_gossip_node import RawGossipNode
from support.raw_node import RawNode, opened
from support.real import PATIENCE_S, RESTING, RealSwarm, run_text, until, without_a_centre
from thinwire_coordinator.hall.rpc.request_bounds import FOR_STRANGERS
from thinwire_node.exchange.coordinator.handshake import prove
from thinwire_proto.contract import Contract
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.report_wire import report_of
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.negotiation import OLDEST_SPOKEN, PROTOCOL
from thinwire_proto.wire.rows import contribution_hash
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

CONNECTIONS, AT_ONCE, JOINS_AT_ONCE = 8, 128, 24
UNFORESEEN = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
"""Of an error in the coordinator's code, or of its end."""
STREAM_S = 1.0
"""A stream may answer nothing for so long."""
LOG_BURST_BYTES, LOG_BYTES_PER_S = 300_000, 1000
NUMBER_MAX = 1e12
"""Of counts, bytes, and times."""
LARGE = {"term", "fingerprint"}
"""Fields of the status that are no counts."""
CALLS = {call.name: call for call in pb.DESCRIPTOR.services_by_name["Swarm"].methods}
STAR = run_text(100_000, length_ms=1000)
GOSSIP = run_text(100_000, length_ms=200, rounds='pace = "clock"') + without_a_centre(2, 4, codec="dense")


class Guest:
    """A joined node of its own, which can sign every message."""

    def __init__(self, channel: grpc.Channel, joining: threading.Semaphore) -> None:
        self.key = SecretKey()
        with joining:
            reply = join(SwarmStub(channel), self.key)
            self._challenge = hello(SwarmStub(channel))
        self.secret, self._contract = reply.session, reply.contract
        self.session = statements.session_of(reply.session)
        self.stub = in_session(channel, reply.session)

    def right(self, call: str) -> Message:
        """A message of this call as it should be, as far as it can be without taking part."""
        part = pb.EvaluationPart(step=1, name="held_out", start=0, count=2, spread=4)
        proof = prove(self.key, b"", self._challenge)
        found: dict[str, Message] = {
            "Hello": pb.HelloRequest(nonce=bytes(32)),
            "Join": pb.JoinRequest(
                protocol=PROTOCOL,
                protocol_oldest=OLDEST_SPOKEN,
                contract=self._contract,
                name="guest",
                momentum=pb.KeptMomentum(trained_through=1, sent_since=[bytes(32)]),
                **proof,
            ),
            "AskReceipt": pb.ReceiptRequest(contribution=bytes(32)),
            "Contribute": pb.ContributionPart(header=pb.ContributionHeader(samples=1, loss=2.5)),
            "Leave": pb.LeaveRequest(trained_through=3),
            "Blob": pb.BlobRequest(hash=bytes(32)),
            "Evaluated": pb.EvaluatedRequest(part=part, loss=2.5),
            "Beat": pb.BeatRequest(
                number=2,
                head=bytes(32),
                loss=2.5,
                step_norm=0.1,
                listens_at=":7000",
                lines=pb.LinesReport(
                    direct_sent=1,
                    edges=[pb.EdgeReport(member=1, line=pb.EdgeReport.LINE_DIRECT, iteration=1)],
                ),
            ),
            "Relay": pb.Parcel(
                node=self.key.public.fingerprint[:16],
                header=pb.PeerHeader(topology=1, iteration=1, sequence=1, codec="dense", body_bytes=3),
                data=b"abc",
            ),
            "Deposit": pb.DepositPart(
                header=pb.DepositHeader(head=bytes(32), body_bytes=4, hash=bytes(32)), data=b"abcd"
            ),
        }
        return found.get(call) or getattr(pb, CALLS[call].input_type.name)()

    def signed(self, message: Any, contract: Contract) -> Any:
        """Sign a message, unless its signature is what is extreme."""
        if isinstance(message, pb.LeaveRequest) and not message.signature:
            through = message.trained_through if message.HasField("trained_through") else None
            message.signature = self.key.sign(statements.leave(self.session, through))
        elif isinstance(message, pb.EvaluatedRequest) and not message.signature:
            part = message.part
            where = (part.step, part.name, part.start, part.count, part.spread)
            message.signature = self.key.sign(statements.evaluated(self.session, *where, message.loss))
        elif isinstance(message, pb.BeatRequest) and not message.signature:
            with suppress(PayloadError):  # of a sketch that nobody can sign
                report = report_of(message).canonical()
                message.signature = self.key.sign(statements.beat(self.session, message.number, report))
        elif isinstance(message, pb.DepositPart) and not message.header.signature:
            given = message.header
            what = statements.deposit(contract.hash, given.iteration, given.head, given.hash)
            given.signature = self.key.sign(what)
        elif isinstance(message, pb.ContributionPart) and not message.header.signature:
            header, node = message.header, self.key.public.node_id
            name = contribution_hash(contract.hash, header.term, header.round, node, message.data)
            header.signature = self.key.sign(statements.contribution(name, header.samples))
        return message


class Sender:
    """Sends messages at once over some connections, and notes how the coordinator fails."""

    def __init__(self, address: str, contract: Contract) -> None:
        local = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
        self._channels = [grpc.insecure_channel(address, options=local) for _ in range(CONNECTIONS)]
        self._next = itertools.cycle(self._channels)
        self._joining = threading.Semaphore(JOINS_AT_ONCE)
        self._contract = contract
        self.wrong: list[str] = []

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def guest(self) -> Guest:
        return Guest(next(self._next), self._joining)

    def everything(self, contribution: Callable[[Guest], Message]) -> None:
        """Send all messages. Refused joins come last: after some, strangers of this network have to wait."""
        example = self.guest()
        counts = {call: 1 + sum(1 for _ in extremes(example.right(call))) for call in CALLS}
        numbered = [(call, number) for call, count in counts.items() if call != "Join" for number in range(count)]
        strange = [(call, found) for call in FOR_STRANGERS for found in extremes(example.right(call))]
        strange += [(call, example.right(call)) for call in CALLS]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda job: self._as_node(self.guest(), job[0], job[1], contribution), numbered))
            enrolled = list(pool.map(lambda _: self.guest(), range(counts["Join"])))
            list(pool.map(lambda job: self._as_node(job[1], "Join", job[0], contribution), enumerate(enrolled)))
            list(pool.map(lambda job: self._send(SwarmStub(next(self._next)), *job), strange))

    def _as_node(self, guest: Guest, call: str, number: int, contribution: Callable[[Guest], Message]) -> None:
        """Send the message with this number among the extreme ones of a call."""
        right = contribution(guest) if call == "Contribute" else guest.right(call)
        if call == "Beat":
            first = guest.signed(pb.BeatRequest(number=1, head=bytes(32)), self._contract)
            self._send(guest.stub, call, first)
        message = next(itertools.islice(itertools.chain([right], extremes(right)), number, None))
        self._send(guest.stub, call, guest.signed(message, self._contract))

    def _send(self, stub: Any, call: str, message: Message) -> None:
        kind = CALLS[call]
        streams = (kind.client_streaming, kind.server_streaming)
        try:
            request = iter([message]) if streams[0] else message
            reply = getattr(stub, call)(request, timeout=STREAM_S if streams[1] else PATIENCE_S)
            if streams[1]:
                next(iter(reply), None)
                reply.cancel()
        except grpc.RpcError as error:
            found: Any = error
            if found.code() in UNFORESEEN or (found.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not streams[1]):
                self.wrong.append(f"{call}: {found.code().name} {found.details()}: {str(message)[:300]}")


@contextmanager
def working(work: Callable[[], object]) -> Iterator[None]:
    """Do a piece of work again and again in a thread."""
    over, problems = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not over.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - told below
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not problems, problems


def numbers(message: Message, path: str = "") -> Iterator[tuple[str, float]]:
    """All numbers in a message."""
    for field, value in message.ListFields():
        for one in value if field.is_repeated else [value]:
            if isinstance(one, Message):
                yield from numbers(one, f"{path}{field.name}.")
            elif isinstance(one, int | float) and field.name not in LARGE:
                yield path + field.name, one


def well(swarm: RealSwarm, began: float) -> None:
    """Check that the coordinator runs, calm, and with sane figures."""
    process = swarm.processes[0]
    assert process.running, process.tail(30)
    text = process.text()
    assert "Traceback" not in text, text[text.index("Traceback") - 500 :][:3000]
    assert not process.events("coordinator.call_failed")
    assert len(text) < LOG_BURST_BYTES + LOG_BYTES_PER_S * (time.monotonic() - began)
    shown = {str(series): value for series, value in parsed(read(f"{swarm.ready['page'].rstrip('/')}/metrics")).items()}
    odd = {name: value for name, value in shown.items() if not (math.isfinite(value) and abs(value) < NUMBER_MAX)}
    odd |= {
        name: value for name, value in numbers(swarm.status()) if not (math.isfinite(value) and abs(value) < NUMBER_MAX)
    }
    assert not odd
    losses = [value for name, value in numbers(swarm.status()) if "loss" in name and "step" not in name]
    assert all(0 <= loss < 100 for loss in losses)


@pytest.fixture
def open_swarm(swarm: RealSwarm) -> RealSwarm:
    swarm.insecure = True
    return swarm


def test_a_coordinator_with_rounds_withstands_every_message(open_swarm: RealSwarm) -> None:
    swarm = open_swarm
    swarm.coordinator(STAR)
    raw = RawNode(swarm)
    honest = swarm.node("honest", *RESTING)
    good = raw.good_payload()

    def contribution(guest: Guest) -> Message:
        """A contribution to an open round."""
        current = opened(iter(guest.stub.Attend(pb.AttendRequest(), timeout=PATIENCE_S)))
        return pb.ContributionPart(header=raw.header(current, payload_bytes=len(good), loss=2.5), data=good)

    with closing(Sender(swarm.address, raw.contract)) as sender, closing(raw.channel):
        until(lambda: swarm.counted("honest") > 0, "an honest round", *swarm.processes)
        began, at_first = time.monotonic(), swarm.counted("honest")
        sender.everything(contribution)
        assert not sender.wrong
    before = swarm.counted("honest")
    assert before > at_first
    until(lambda: swarm.counted("honest") > before + 1, "honest rounds go on", *swarm.processes)
    assert honest.running
    well(swarm, began)


def test_a_coordinator_without_a_centre_withstands_every_message(open_swarm: RealSwarm) -> None:
    swarm = open_swarm
    swarm.coordinator(GOSSIP)
    nodes = [RawGossipNode(swarm), RawGossipNode(swarm)]
    pause = threading.Event()

    def report() -> None:
        for node in nodes:
            node.train() if node.lease else node.beat()
        pause.wait(0.2)

    with closing(Sender(swarm.address, nodes[0].contract)) as sender:
        began = time.monotonic()
        with working(report):
            until(lambda: swarm.status().gossip.beats > 0, "beats are sealed", *swarm.processes)
            sender.everything(lambda guest: guest.right("Contribute"))
            beats = swarm.status().gossip.beats
            until(lambda: swarm.status().gossip.beats > beats + 2, "beats go on", *swarm.processes)
        assert not sender.wrong
    well(swarm, began)
