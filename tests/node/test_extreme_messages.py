"""Every message that a coordinator or a peer sends, with each field at its extremes, is converted or refused.

The fields come from the protobuf descriptors, so a new field is covered, and a new message fails until somebody says
what reads it. A refusal is one typed error of a fault of the other end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from support.small import small_contract
from thinwire_node.exchange.coordinator import messages
from thinwire_node.exchange.coordinator.clock import CoordinatorClock, Probe
from thinwire_node.exchange.gossip.messages import beat_answer
from thinwire_node.exchange.peers.framing import Framing
from thinwire_node.exchange.port import AnnouncedRound
from thinwire_proto.clean_text import clean_text
from thinwire_proto.contract import Contract
from thinwire_proto.errors import RemoteError
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.rows import parse_row

KEY = SecretKey(bytes(range(32)))
TEXTS = ["", "x" * 100_000, "\x1b[2J\r\n\u202e", "é\n", "\x00", "a:99999999", "[::1"]
BYTES = [b"", b"\x00", b"\xff" * 31, b"\xff" * 32, b"\xff" * 33, bytes(100_000)]
FLOATS = [0.0, -1.0, 5e-324, 3e38, 1.7e308, math.inf, -math.inf, math.nan]
REPEATED_MAX = 5000
LARGEST = {
    FieldDescriptor.TYPE_UINT32: (1 << 32) - 1,
    FieldDescriptor.TYPE_UINT64: (1 << 64) - 1,
    FieldDescriptor.TYPE_FIXED64: (1 << 64) - 1,
}


def scalars(field: Any) -> list[Any]:
    """The extreme values of a field that is no message."""
    if field.type in LARGEST:
        largest = LARGEST[field.type]
        return [0, 1, largest // 2, largest // 2 + 1, largest - 1, largest]
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = [value.number for value in field.enum_type.values]
        return [*known, max(known) + 1, (1 << 31) - 1, -(1 << 31)]
    kinds: dict[int, list[Any]] = {
        FieldDescriptor.TYPE_STRING: TEXTS,
        FieldDescriptor.TYPE_BYTES: BYTES,
        FieldDescriptor.TYPE_BOOL: [False, True],
        FieldDescriptor.TYPE_DOUBLE: FLOATS,
        FieldDescriptor.TYPE_FLOAT: [value for value in FLOATS if not 3e38 < abs(value) < math.inf],
    }
    return kinds[field.type]  # a new type of field needs its extremes here


def extremes(valid: Message) -> Iterator[Message]:
    """Copies of a message, each with one field at one extreme; fields of the messages in it included."""
    for field in valid.DESCRIPTOR.fields:
        yield _changed(valid, partial(_clear, field.name))
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            yield from _inner(valid, field)
        elif field.is_repeated:
            for value in scalars(field):
                for times in (1, 2, REPEATED_MAX):
                    yield _changed(valid, partial(_fill, field.name, [value] * times))
        else:
            for value in scalars(field):
                yield _changed(valid, partial(_set, field.name, value))


def _inner(valid: Message, field: Any) -> Iterator[Message]:
    name = field.name
    if not field.is_repeated:
        for inner in extremes(getattr(valid, name)):
            yield _changed(valid, partial(_replace, name, inner))
        return
    empty = field.message_type._concrete_class()
    first = next(iter(getattr(valid, name)), empty)
    for times in (2, REPEATED_MAX):
        for one in (empty, first):
            yield _changed(valid, partial(_refill, name, [one] * times))
    for inner in extremes(first):
        yield _changed(valid, partial(_refill, name, [inner]))


def _changed(valid: Message, change: Callable[[Any], object]) -> Message:
    copy = type(valid)()
    copy.CopyFrom(valid)
    change(copy)
    return copy


def _clear(name: str, message: Any) -> None:
    message.ClearField(name)


def _set(name: str, value: Any, message: Any) -> None:
    setattr(message, name, value)


def _replace(name: str, value: Message, message: Any) -> None:
    getattr(message, name).CopyFrom(value)


def _fill(name: str, values: list[Any], message: Any) -> None:
    message.ClearField(name)
    if isinstance(values[0], str | bytes):
        values = values if len(values[0]) < 100 else values[:2]
    getattr(message, name).extend(values)


def _refill(name: str, values: list[Message], message: Any) -> None:
    message.ClearField(name)
    getattr(message, name).extend(values)


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
            level=pb.ExchangeLevel(codec="int8", every=2, start=4),
            evaluate=[PART],
        ),
        beaten,
    ),
    (pb.UpdatePart(row=b"\x90", data=b"x", head_step=1, signature=bytes(64)), updated),
    (
        pb.Parcel(
            node=bytes(16),
            header=pb.PeerHeader(topology=1, iteration=1, sequence=1, codec="sign", body_bytes=3, every=1),
            data=b"abc",
        ),
        parcelled,
    ),
]
ELSEWHERE = {
    "FilePart": "Link._parts: tests/node/test_snapshot_resumes.py",
    "LeaveReply": "has no field",
    "EvaluatedReply": "has no field",
    "DepositReply": "one text, which Link.deposit cleans",
    "StatusReply": "no node reads it",
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
