"""Every message that a coordinator or a peer sends, with each field at its extremes, is converted or refused.

The fields come from the protobuf descriptors, so a new field is covered, and a new message fails until somebody says
what reads it. A refusal is one typed error of a fault of the other end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.message import Message

from support.extremes import extremes
from support.small import small_contract
from thinwire_node.exchange.coordinator import messages
from thinwire_node.exchange.coordinator.clock import CoordinatorClock, Probe
from thinwire_node.exchange.port import AnnouncedRound
from thinwire_node.gossip.exchange import amended, beat_answer
from thinwire_node.gossip.lines.line import Framing
from thinwire_proto.clean_text import clean_text
from thinwire_proto.contract import Contract
from thinwire_proto.contract.amendment import AMENDMENTS_MAX
from thinwire_proto.errors import ContractError, RemoteError
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.rows import parse_row

KEY = SecretKey(bytes(range(32)))
# what a node does with each message


CONTRACT: Contract = small_contract()


def greeted(reply: pb.HelloReply) -> None:
    found = messages.greeting(reply)
    assert len(found.public_key) == 32


def joined(reply: pb.JoinReply) -> None:
    secret = messages.session_secret(reply)
    assert secret.isascii()
    assert secret.isprintable(), "gRPC would refuse such metadata with an error of its own"
    admission = messages.admission(reply)
    assert admission.step <= CONTRACT.schedule.steps
    assert clean_text(admission.drop_momentum) == admission.drop_momentum


def announced(message: pb.Announcement) -> None:
    found = messages.announcement(message, CONTRACT)
    assert found.step <= CONTRACT.schedule.steps
    if not isinstance(found, AnnouncedRound):
        return
    assert 1 <= found.k <= CONTRACT.demo.k
    assert 1 <= len(found.nonces) <= messages.NONCES_MAX
    assert math.isfinite(found.deadline)
    assert sum(map(len, found.lease)) <= messages.POSITIONS_MAX
    assert sum(map(len, found.upcoming)) <= messages.POSITIONS_MAX
    assert all(len(part.name.encode()) <= 256 for part in found.evaluate)
    assert all(part.name.isprintable() for part in found.evaluate)


def probed(reply: pb.ProbeReply) -> None:
    term, received, answered = messages.probe_times(reply)
    clock = CoordinatorClock()
    clock.add(Probe(1.0, received, answered, 2.0), term)


def settled(receipt: pb.Receipt) -> None:
    found = messages.outcome(receipt)
    assert found.text.isprintable()
    assert found.arrived is None or math.isfinite(found.arrived)


def beaten(reply: pb.BeatReply) -> None:
    with suppress(ContractError):
        assert len(amended(reply, CONTRACT).amendments) <= AMENDMENTS_MAX
    found = beat_answer(reply)
    assert math.isfinite(found.next_s)
    assert found.text.isprintable()
    assert all(len(place.key.data) == 32 for place in found.places.values())


def updated(part: pb.UpdatePart) -> None:
    parse_row(part.row)
    messages.check_number("steps", part.head_step, CONTRACT.schedule.steps)


def parcelled(parcel: pb.Parcel) -> None:
    framing = Framing(KEY, KEY.public, CONTRACT.hash, 1 << 16)
    framing.read(parcel)


RUNS = [pb.SampleRange(start=0, count=8)]
PART = pb.EvaluationPart(step=3, name="held_out", start=0, count=2, spread=4)
PEER = pb.PeerAddress(member=1, public_key=KEY.public.data, address="a:1", since=1)
READ: list[tuple[Message, Callable[[Any], None]]] = [
    (pb.HelloReply(public_key=KEY.public.data, challenge=bytes(32), signature=bytes(64)), greeted),
    (pb.JoinReply(contract=CONTRACT.written, session="a1" * 16, step=1, protocol=5), joined),
    (
        pb.Announcement(
            state=pb.Announcement.STATE_ROUND,
            term=1,
            round=2,
            step=3,
            time_left_ms=500,
            k=1,
            nonces=[1],
            lease=RUNS,
            clock_us=10**9,
            evaluate=[PART],
            upcoming=RUNS,
            evaluating=3,
        ),
        announced,
    ),
    (pb.Announcement(state=pb.Announcement.STATE_WAITING, step=3, text="for one more"), announced),
    (pb.ProbeReply(term=1, received_us=5, answered_us=6), probed),
    (pb.Receipt(outcome=pb.Receipt.OUTCOME_COUNTED, step=4, arrived_us=9), settled),
    (
        pb.BeatReply(
            state=pb.BeatReply.STATE_TRAINING,
            next_ms=1000,
            lease=RUNS,
            assignment=pb.Assignment(
                topology=1, cycle=[pb.Turns(turns=[pb.TurnOfCycle(member=1, weight=0.5)])], peers=[PEER]
            ),
            evaluate=[PART],
        ),
        beaten,
    ),
    (pb.UpdatePart(row=b"\x90", data=b"x", head_step=1, signature=bytes(64)), updated),
    (
        pb.Parcel(
            node=bytes(16),
            header=pb.PeerHeader(topology=1, iteration=1, sequence=1, codec="sign", body_bytes=3),
            data=b"abc",
        ),
        parcelled,
    ),
]
ELSEWHERE = {
    "FilePart": "Link._parts: tests/node/test_resumed_downloads.py",
    "LeaveReply": "has no field",
    "EvaluatedReply": "has no field",
    "DepositReply": "one text, which Link.deposit cleans",
    "StatusReply": "no node reads it",
    "ExamineReply": "of the doctor: tests/node/test_doctor.py",
    "FollowPart": "to a standby: tests/coordinator/test_standby.py",
}


@pytest.mark.parametrize(("valid", "read"), READ, ids=lambda given: getattr(given, "__name__", ""))
def test_each_field_at_its_extremes_is_converted_or_refused(valid: Message, read: Callable[[Any], None]) -> None:
    refused = 0
    for message in extremes(valid):
        try:
            read(message)
        except RemoteError:
            refused += 1
    assert refused or isinstance(valid, pb.Announcement)


def test_no_message_to_a_node_is_left_out() -> None:
    calls = [call for service in pb.DESCRIPTOR.services_by_name.values() for call in service.methods]
    sent = {call.output_type.name for call in calls}
    assert sent == {type(valid).__name__ for valid, _ in READ} | ELSEWHERE.keys()
