"""The reasons of `reasons` as protobuf numbers, for the two modules that translate messages."""

from __future__ import annotations

from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.reasons import Reason

NUMBERS: dict[Reason, pb.Receipt.Reason.ValueType] = {
    Reason.COUNTED: pb.Receipt.REASON_NONE,
    Reason.LATE: pb.Receipt.REASON_LATE,
    Reason.FUTURE_ROUND: pb.Receipt.REASON_FUTURE_ROUND,
    Reason.REPLICA_DIFFERS: pb.Receipt.REASON_REPLICA_DIFFERS,
    Reason.BASE_AGE: pb.Receipt.REASON_BASE_AGE,
    Reason.MALFORMED: pb.Receipt.REASON_MALFORMED,
    Reason.OVER_LEASE: pb.Receipt.REASON_OVER_LEASE,
    Reason.NO_LEASE: pb.Receipt.REASON_NO_LEASE,
    Reason.DUPLICATE: pb.Receipt.REASON_DUPLICATE,
    Reason.VOID: pb.Receipt.REASON_VOID,
    Reason.NOTHING_TRAINED: pb.Receipt.REASON_NOTHING_TRAINED,
    Reason.UNKNOWN: pb.Receipt.REASON_UNKNOWN,
    Reason.SIGNATURE: pb.Receipt.REASON_SIGNATURE,
    Reason.SUSPECTED: pb.Receipt.REASON_SUSPECTED,
}
_REFUSALS: dict[int, Reason] = {number: reason for reason, number in NUMBERS.items() if reason is not Reason.COUNTED}


def outcome_of(reason: Reason) -> pb.Receipt.Outcome.ValueType:
    return pb.Receipt.OUTCOME_COUNTED if reason is Reason.COUNTED else pb.Receipt.OUTCOME_NOT_COUNTED


def reason_of(receipt: pb.Receipt) -> Reason:
    """The reason in a receipt. UNKNOWN if a newer coordinator sent a reason that this version does not know."""
    if receipt.outcome == pb.Receipt.OUTCOME_COUNTED:
        return Reason.COUNTED
    return _REFUSALS.get(receipt.reason, Reason.UNKNOWN)
