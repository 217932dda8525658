"""Every message that a coordinator or a peer sends, with each field at its extremes, is read or refused.

The fields come from the protobuf descriptors, so a new field is covered, and a new message fails until somebody says
what reads it. What a node does with a message is that of the fuzz target.
"""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from fuzz.target import try_one
from fuzz.targets import all_targets
from support.extremes import extremes
from thinwire_proto.wire import service_pb2 as pb

READ: dict[str, type[Message]] = {
    "hello reply": pb.HelloReply,
    "join reply": pb.JoinReply,
    "announcement": pb.Announcement,
    "probe reply": pb.ProbeReply,
    "receipt": pb.Receipt,
    "beat reply": pb.BeatReply,
    "update part": pb.UpdatePart,
    "parcel of a peer": pb.Parcel,
    "examine reply": pb.ExamineReply,
}
"""By the name of the target."""
ELSEWHERE = {
    "FilePart": "Link._parts: tests/node/test_resumed_downloads.py",
    "LeaveReply": "has no field",
    "EvaluatedReply": "has no field",
    "StatusReply": "no node reads it",
    "DepositReply": "one text, which Link.deposit cleans",
    "FollowPart": "to a standby: tests/coordinator/test_standby.py",
}


@pytest.mark.parametrize(("name", "kind"), READ.items(), ids=READ)
def test_each_field_at_its_extremes_is_converted_or_refused(name: str, kind: type[Message]) -> None:
    (target,) = (one for one in all_targets() if one.name == name)
    for valid in filter(None, target.valid):
        for message in extremes(kind.FromString(valid)):
            try_one(target, message.SerializeToString())


def test_no_message_to_a_node_is_left_out() -> None:
    calls = [call for service in pb.DESCRIPTOR.services_by_name.values() for call in service.methods]
    sent = {call.output_type.name for call in calls}
    assert sent == {kind.__name__ for kind in READ.values()} | ELSEWHERE.keys()
