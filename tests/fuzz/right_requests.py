"""Requests as they should be, by their calls; calls with an empty request are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.negotiation import OLDEST_SPOKEN, PROTOCOL

HASH = bytes(range(32))
PART = pb.EvaluationPart(step=1, name="held_out", start=0, count=2, spread=4)
LINE = pb.EdgeReport(member=1, line=pb.EdgeReport.LINE_DIRECT, iteration=1)


def right_requests(contract: bytes, proof: Mapping[str, Any]) -> dict[str, Message]:
    """proof: the fields of a Join that prove a key. Other messages are not signed."""
    return {
        "Hello": pb.HelloRequest(nonce=HASH),
        "Join": pb.JoinRequest(
            protocol=PROTOCOL,
            protocol_oldest=OLDEST_SPOKEN,
            contract=contract,
            name="guest",
            momentum=pb.KeptMomentum(trained_through=1, sent_since=[HASH]),
            **proof,
        ),
        "Examine": pb.ExamineRequest(padding=HASH, wanted_bytes=32, **proof),
        "AskReceipt": pb.ReceiptRequest(contribution=HASH),
        "Contribute": pb.ContributionPart(header=pb.ContributionHeader(samples=1, loss=2.5)),
        "Leave": pb.LeaveRequest(trained_through=3),
        "Blob": pb.BlobRequest(hash=HASH),
        "Evaluated": pb.EvaluatedRequest(part=PART, loss=2.5),
        "Beat": pb.BeatRequest(
            number=2,
            head=HASH,
            loss=2.5,
            step_norm=0.1,
            listens_at=":7000",
            lines=pb.LinesReport(direct_sent=1, edges=[LINE]),
        ),
        "Relay": pb.Parcel(
            node=HASH[:16],
            header=pb.PeerHeader(topology=1, iteration=1, sequence=1, codec="dense", body_bytes=3),
            data=b"abc",
        ),
        "Deposit": pb.DepositPart(header=pb.DepositHeader(head=HASH, body_bytes=4, hash=HASH), data=b"abcd"),
    }
