"""The conversion between protobuf messages and the port's types keeps every field."""

from __future__ import annotations

import pytest

from thinwire_node.exchange.coordinator import messages
from thinwire_node.exchange.port import AnnouncedRound, Claim
from thinwire_proto.errors import PayloadError
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.reason_numbers import NUMBERS
from thinwire_proto.wire.reasons import Reason


def test_each_reason_has_its_number_on_the_wire() -> None:
    named = {number: name.removeprefix("REASON_").lower() for name, number in pb.Receipt.Reason.items() if number}
    assert {number: reason.value for reason, number in NUMBERS.items() if number} == named
    assert set(NUMBERS) == set(Reason)


def test_a_contribution_is_signed_and_a_claim_without_samples_is_not() -> None:
    key, claim = SecretKey(), Claim(1, 2, 3, 2, 0, samples=4, name=b"n" * 32)
    signature = messages.header(claim, key).signature
    assert key.public.verifies(signature, statements.contribution(b"n" * 32, 4))
    assert not key.public.verifies(signature, statements.contribution(b"n" * 32, 5))
    assert messages.header(Claim(1, 2, 3, 2, 0), key).signature == b""


@pytest.mark.parametrize("run", [pb.SampleRange(start=0, count=2**32 - 1), pb.SampleRange(start=2**64 - 9, count=8)])
def test_a_node_does_not_walk_over_positions_without_end(run: pb.SampleRange) -> None:
    state = pb.Announcement.STATE_ROUND
    with pytest.raises(PayloadError, match="larger than any contract allows"):
        messages.announcement(pb.Announcement(state=state, k=8, nonces=[5], lease=[run]))
    announced = messages.announcement(pb.Announcement(state=state, k=8, nonces=[5], upcoming=[run] * 3))
    assert isinstance(announced, AnnouncedRound)
    assert sum(len(found) for found in announced.upcoming) <= messages.POSITIONS_MAX
