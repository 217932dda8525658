"""The conversion between protobuf messages and the port's types keeps every field."""

from __future__ import annotations

import pytest

from thinwire_node.exchange.coordinator import messages
from thinwire_node.exchange.port import AnnouncedRound, Claim, RunComplete, Waiting
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


def test_announcements_convert_to_the_types_of_the_port() -> None:
    lease = [pb.SampleRange(start=4, count=2), pb.SampleRange(start=9, count=1)]
    opened = pb.Announcement(
        state=pb.Announcement.STATE_ROUND,
        term=1,
        round=2,
        step=3,
        k=8,
        nonces=[5, 6],
        clock_us=10_000_000,
        time_left_ms=500,
        lease=lease,
    )
    assert messages.announcement(opened) == AnnouncedRound(1, 2, 3, 10.5, 8, (5, 6), (range(4, 6), range(9, 10)))
    waiting = pb.Announcement(state=pb.Announcement.STATE_WAITING, step=3, text="for one more node")
    assert messages.announcement(waiting) == Waiting(3, "for one more node")
    assert messages.announcement(pb.Announcement(state=pb.Announcement.STATE_COMPLETE, step=9)) == RunComplete(9)


def test_a_claim_distinguishes_position_0_from_none() -> None:
    claim = Claim(1, 2, 3, 2, 0, dropped=1, samples=4, fingerprint=2**63, loss=2.5, compute_ms=70)
    header = messages.header(claim, SecretKey())
    fields = (header.term, header.round, header.step, header.base_step, header.dropped, header.samples)
    assert fields == (1, 2, 3, 2, 1, 4)
    assert (header.fingerprint, header.loss, header.compute_ms) == (2**63, 2.5, 70)
    assert header.HasField("trained_through")
    assert not messages.header(Claim(1, 2, 3, 3, None), SecretKey()).HasField("trained_through")


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
