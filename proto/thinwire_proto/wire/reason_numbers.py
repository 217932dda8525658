"""The reasons of `reasons` as protobuf numbers, for the two modules that translate messages."""

from __future__ import annotations

from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.reasons import Reason

NUMBERS = {reason: pb.Receipt.Reason.Value(f"REASON_{reason.name}") for reason in Reason}
_REFUSALS = {int(number): reason for reason, number in NUMBERS.items() if reason is not Reason.COUNTED}


def outcome_of(reason: Reason) -> pb.Receipt.Outcome.ValueType:
    return pb.Receipt.OUTCOME_COUNTED if reason is Reason.COUNTED else pb.Receipt.OUTCOME_NOT_COUNTED


def reason_of(receipt: pb.Receipt) -> Reason:
    """The reason in a receipt. UNKNOWN if a newer coordinator sent a reason that this version does not know."""
    if receipt.outcome == pb.Receipt.OUTCOME_COUNTED:
        return Reason.COUNTED
    return _REFUSALS.get(receipt.reason, Reason.UNKNOWN)
